"""Low-rank adapters on the control side, without torch: reading their folders, and which adapters are served."""
