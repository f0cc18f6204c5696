"""What a model is for when it is served for pooling, as its files and the options have it. No torch."""
