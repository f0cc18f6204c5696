"""The paged KV cache's bookkeeping: who holds which block, and which blocks can be found again. No tensors here."""
