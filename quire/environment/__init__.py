"""`quire collect-env`: what a report of a fault should say of the machine."""
