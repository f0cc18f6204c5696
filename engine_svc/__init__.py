"""The engine worker: it computes."""

import os

# torch's own threads, which it starts when it is imported, are to sleep when they have nothing to do: by default they
# spin for milliseconds, on the cores that our kernels' threads and the services want.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
