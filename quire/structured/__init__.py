"""Outputs that follow a grammar: compiled in the tokenizer service, followed token by token in an engine."""
