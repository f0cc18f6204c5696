"""Determines from a model's files and the options how it is served for pooling. Does not import torch."""
