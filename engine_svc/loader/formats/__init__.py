"""What `--load-format` chooses: one file for each way of keeping weights."""
