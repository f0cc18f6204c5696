"""What must be set before torch and triton are imported."""

from __future__ import annotations

import os
from pathlib import Path

# Without a GPU, Triton kernels run in Triton's interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Beside each other, processes with a thread for each core spend their time waiting for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
