"""The step, and what runs and watches it."""
