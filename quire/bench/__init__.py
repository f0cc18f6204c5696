"""`quire bench`: measures how fast a server, or an engine, answers."""
