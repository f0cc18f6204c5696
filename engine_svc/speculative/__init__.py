"""Guesses of the tokens that come next, and how many of them are worth a step's while. Control side: no torch."""
