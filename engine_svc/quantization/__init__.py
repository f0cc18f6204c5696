"""Forms of weights: `base.py` is the contract, one file for each method."""
