"""Compiles the device, once for each version of it and of torch."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import torch

from engine_svc.file_lock import locked

_FOLDER = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_SECONDS = 600.0


def library() -> Path:
    """The device as a library for torch to load; compiles it if necessary."""
    sources = [file.read_bytes() for file in sorted(_FOLDER.glob("*.cpp")) + sorted(_FOLDER.glob("*.h"))]
    version = hashlib.sha256(b"\0".join([torch.__version__.encode(), *sources])).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "emulated_gpu"
    target = cache / f"device-{version}.so"
    with locked(cache / "lock", _SECONDS):
        if not target.exists():
            temporary = target.with_suffix(".new")
            command = [
                os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{_TORCH / 'include'}",
                str(_FOLDER / "device.cpp"), "-o", str(temporary), f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu",
                "-ltorch", f"-Wl,-rpath,{_TORCH / 'lib'}",
            ]  # fmt: skip
            subprocess.run(command, check=True, timeout=_SECONDS)
            temporary.replace(target)
    return target
