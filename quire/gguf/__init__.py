"""GGUF files, in which llama.cpp keeps a model: its weights, configuration and tokenizer in one file."""
