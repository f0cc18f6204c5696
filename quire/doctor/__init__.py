"""`quire doctor`: finds what would go wrong when starting the stack."""
