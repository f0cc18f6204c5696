"""The compute side of pooling: hidden states of whole sequences, and the vectors and classes that are made of them."""
