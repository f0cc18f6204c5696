"""Sampling: from logits to tokens, for all sequences of a step at once."""
