"""`quire bench`: how fast a server, or an engine, answers."""
