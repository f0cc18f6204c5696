"""The runner: one rank's model, buffers and steps."""
