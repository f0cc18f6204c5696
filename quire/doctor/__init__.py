"""`quire doctor`: what would go wrong in a start of the stack, found before it."""
