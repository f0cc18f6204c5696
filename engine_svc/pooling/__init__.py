"""The compute side of pooling: hidden states of whole sequences, and the vectors and classes made from them."""
