"""`quire bench latency` and `quire bench throughput`, which run an engine in this process without any services."""
