"""GGUF files, llama.cpp's format for a model: weights, configuration and tokenizer in one file."""
