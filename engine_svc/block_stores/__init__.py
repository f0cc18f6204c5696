"""The half of a connector that moves KV blocks. `base.py` is the contract, with one file per implementation."""
