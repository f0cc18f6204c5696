"""Options: typed dataclasses, one file per group, from which flags, environment variables, YAML keys and docs are
derived."""
