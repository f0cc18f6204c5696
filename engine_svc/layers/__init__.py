"""Layers: parallel from the first line, and each parameter knows how to load its own part of a checkpoint."""
