"""A model's tokenizer files and what its tokens stand for: what tokenizer service and engine both read."""
