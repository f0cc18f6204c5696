"""Presents GGUF models in Hugging Face's layout: their configuration, and the names of their tensors."""
