"""The router: it says which worker computes what."""

import os

# Placements multiply no matrices: numpy's library would start a thread for each core, which spins for a while.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
