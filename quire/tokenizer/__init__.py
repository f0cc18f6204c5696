"""A model's tokenizer files, and the bytes of its tokens, as read by both tokenizer service and engine."""
