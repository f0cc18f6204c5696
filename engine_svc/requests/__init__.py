"""A request and its sequences, from what was asked to what is answered."""
