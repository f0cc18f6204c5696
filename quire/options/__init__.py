"""Options: typed dataclasses, one file per group, from which flags, environment variables, YAML and docs are made."""
