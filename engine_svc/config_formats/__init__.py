"""What a model says of its own shape, in whichever file: as config.json of the Transformers library has it."""
