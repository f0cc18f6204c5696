"""Executors, which run a worker's ranks. `base.py` is the contract, with one file per implementation."""
