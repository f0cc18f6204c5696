"""Grammars that constrain sequences: compiled once, then followed token by token. No torch."""
