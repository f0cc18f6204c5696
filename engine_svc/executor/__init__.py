"""Executors: how a worker's ranks run. `base.py` is the contract, one file per implementation."""
