"""Other places where KV blocks are kept. `base.py` is the contract, one file per implementation."""
