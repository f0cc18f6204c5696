"""Converts the tokenizers of folders without tokenizer.json to its form. Code in a folder is never run."""
