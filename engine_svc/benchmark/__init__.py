"""`quire bench latency` and `quire bench throughput`: an engine in this process, without services around it."""
