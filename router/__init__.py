"""The router: decides which worker computes which request."""

import os

# Placement multiplies no matrices, but numpy's BLAS library would start a thread per core, which spins for a while.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
