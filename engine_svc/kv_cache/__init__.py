"""Bookkeeping of the paged KV cache: who holds which block, and which blocks can be found again. No tensors here."""
