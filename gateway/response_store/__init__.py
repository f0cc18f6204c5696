"""Storage of responses, and responses in progress."""
