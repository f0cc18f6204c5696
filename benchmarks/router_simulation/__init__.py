"""The router's own code over simulated engines: whole fleets, hours and disasters in seconds, the same each time."""
