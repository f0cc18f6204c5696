"""`quire serve`: the whole stack as supervised local processes."""
