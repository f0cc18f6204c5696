"""Which attention backend runs here."""

from __future__ import annotations

import importlib

from engine_svc.attention.base import AttentionBackend, AttentionShape
from engine_svc.attention.native import suits
from quire.errors import StartupError

# Loaded by name: triton is imported only where it is used.
BACKENDS = {
    "triton": "engine_svc.attention.triton:TritonBackend",
    "native": "engine_svc.attention.native:NativeBackend",
    "cpu": "engine_svc.attention.cpu:CpuBackend",
    "reference": "engine_svc.attention.reference:ReferenceBackend",
}


def create_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """The backend of that name; `auto` is triton on a GPU, native where its kernels can run, and cpu elsewhere.

    Raises:
        StartupError: there is none of that name.
    """
    chosen = _automatic(shape) if name == "auto" else name
    if chosen not in BACKENDS:
        raise StartupError(f"--attention-backend {name}: choose auto or one of {', '.join(BACKENDS)}.")
    module, _, class_name = BACKENDS[chosen].partition(":")
    backend: AttentionBackend = getattr(importlib.import_module(module), class_name)(shape)
    return backend


def _automatic(shape: AttentionShape) -> str:
    if shape.device.type == "cuda":
        return "triton"
    return "native" if suits(shape) else "cpu"
