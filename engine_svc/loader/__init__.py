"""Loads weights from the formats of `--load-format`; each rank reads its own part."""
