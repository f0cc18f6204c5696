"""Engine workers: where they come from, what is known of each, and which of them are ready."""
