"""What the model is taught: one file per skill, each a function from a source of randomness to a conversation."""
