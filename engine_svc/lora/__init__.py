"""Low-rank adapters (LoRA; Hu et al. 2021) on a model's layers: what they hold, where it is, what it adds."""
