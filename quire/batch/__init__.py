"""`quire run-batch`: answers a file of requests with a stack of its own."""
