"""Structured output: grammars are compiled in the tokenizer service, and followed token by token in an engine."""
