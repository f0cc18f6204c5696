"""Chooses the attention backend."""

from __future__ import annotations

from engine_svc.attention.base import AttentionBackend, AttentionShape
from engine_svc.attention.chosen import ChosenAttention, TorchChosenAttention
from engine_svc.attention.native import suits
from engine_svc.native.library import Kernels
from quire.options.kernels import ATTENTION_BACKENDS
from quire.registry import load_entry, registry

# Loaded by name: triton is imported only where it is used.
BACKENDS = registry(
    "--attention-backend",
    ATTENTION_BACKENDS,
    {
        "triton": "engine_svc.attention.triton:TritonBackend",
        "native": "engine_svc.attention.native:NativeBackend",
        "cpu": "engine_svc.attention.cpu:CpuBackend",
        "reference": "engine_svc.attention.reference:ReferenceBackend",
    },
)


def create_backend(name: str, shape: AttentionShape, kernels: Kernels | None) -> AttentionBackend:
    """Creates a backend by name; `auto` means triton on a GPU, native where its kernels can run, else cpu.

    Args:
        kernels: the rank's CPU kernels; None means that they are not used.

    Raises:
        StartupError: there is no backend of that name, or it cannot run here.
    """
    chosen = _automatic(shape, kernels) if name == "auto" else name
    backend: AttentionBackend = load_entry("--attention-backend", BACKENDS, chosen)(shape, kernels)
    return backend


def create_chosen(
    attention: AttentionBackend, keys: AttentionBackend, shared_layers: frozenset[int] = frozenset()
) -> ChosenAttention:
    """Creates a ChosenAttention with kernels like those of the backend."""
    if attention.name == "triton":
        from engine_svc.attention.chosen_triton import TritonChosenAttention  # Triton is imported only where it is used

        return TritonChosenAttention(attention, keys, shared_layers=shared_layers)
    return TorchChosenAttention(attention, keys, shared_layers=shared_layers)


def _automatic(shape: AttentionShape, kernels: Kernels | None) -> str:
    if shape.device.type == "cuda":
        return "triton"
    return "native" if suits(shape, kernels) else "cpu"
