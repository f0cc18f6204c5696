"""Engine workers: where they come from, what the router knows of each, and which of them are ready."""
