"""Where responses are kept, and those that are under way."""
