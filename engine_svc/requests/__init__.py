"""Requests and their sequences: validation, state while they live, and outputs."""
