"""Turns the tokens and text of a request's choices into answers: deltas, parsers, streams and whole answers."""
