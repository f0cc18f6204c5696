"""The engine worker, which runs the model."""

import os

# Makes torch's own threads, which are started on import, sleep when idle: by default they spin for milliseconds, on
# cores that our kernels' threads and the services need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
