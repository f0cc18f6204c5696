"""Parallelism. Process groups are passed as values, never held in globals."""
