"""Quantization methods: `base.py` is the contract, with one file for each method."""
