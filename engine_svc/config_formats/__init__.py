"""Reads a model's configuration from any supported file, in the form of the Transformers library's config.json."""
