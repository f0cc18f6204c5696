"""Models in GGUF as models of the Hugging Face layout: their configuration, and what their tensors are called there."""
