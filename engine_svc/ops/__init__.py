"""The operations layers are made of: `base.py` is the contract, one file per way to run them."""
