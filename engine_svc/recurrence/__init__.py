"""What recurrent layers compute, and the states that they keep of sequences: `base.py` is the contract."""
