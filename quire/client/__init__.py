"""Command-line clients of a running server."""
