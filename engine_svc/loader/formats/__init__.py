"""The formats of `--load-format`: one file for each way to store weights."""
