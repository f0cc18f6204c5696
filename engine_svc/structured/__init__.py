"""Grammars that sequences follow: read once, followed token by token. No torch."""
