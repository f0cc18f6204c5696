"""Benchmarks: each runs by one command and prints the table that benchmarks/results keeps."""
