"""Connectors to other places that keep KV blocks. `base.py` is the contract, with one file per implementation."""
