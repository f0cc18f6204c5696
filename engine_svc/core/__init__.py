"""The engine's step, and the code that runs and watches it."""
