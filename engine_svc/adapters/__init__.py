"""Low-rank adapters as the control side knows them: what their folders hold, and which are served. Without torch."""
