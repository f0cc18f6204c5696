"""From the tokens and texts of a request's choices to what its client reads: deltas, parsers, and how both are sent."""
