"""Without a GPU, Triton kernels run in Triton's interpreter. Read when triton is imported."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
