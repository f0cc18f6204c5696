"""`quire run-batch`: a file of requests, answered by a stack of its own."""
