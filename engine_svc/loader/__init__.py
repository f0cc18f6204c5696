"""Loading weights: memory-mapped safetensors, of which each rank reads its own part."""
