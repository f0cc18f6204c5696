"""Models: one file per family on shared layers; `registry.py` knows which architecture is in which."""
