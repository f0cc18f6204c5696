"""What changes logits before a token is drawn: `base.py` is the contract, one file for each kind."""
