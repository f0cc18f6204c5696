"""Low-rank adapters (LoRA; Hu et al. 2021) on a model's layers: reading, storing and applying them."""
