"""The operations that layers are built from: `base.py` is the contract, with one file per implementation."""
