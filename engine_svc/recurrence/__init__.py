"""The operations of recurrent layers and their per-sequence states: `base.py` is the contract."""
