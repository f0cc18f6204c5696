"""Attention over the paged KV cache: `base.py` is the contract, one file per backend."""
