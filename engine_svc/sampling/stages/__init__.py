"""Stages that change logits before a token is sampled: `base.py` is the contract, with one file per kind."""
