"""`quire collect-env`: the information on the machine that a bug report should include."""
