"""What every layer is built with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine_svc.ops.base import Ops
from engine_svc.parallel.group import ParallelGroups
from engine_svc.quantization.base import QuantizationMethod


@dataclass(frozen=True)
class LayerContext:
    """One per model and rank."""

    groups: ParallelGroups
    dtype: torch.dtype
    device: torch.device
    ops: Ops
    quantization: QuantizationMethod
    path: str = ""  # of the layer in the model

    def at(self, name: str) -> LayerContext:
        """That of a module inside."""
        return replace(self, path=f"{self.path}.{name}".removeprefix("."))


class PackedLayer(torch.nn.Module):
    """A layer that, once loaded, turns its weight into whatever form its product is computed from."""

    # Tensors of a checkpoint beside its parameters, by the last part of their names, that say nothing new.
    ignored: frozenset[str] = frozenset()

    def pack(self) -> None:
        """Called once, when the weights are loaded; frees those that are not needed any more."""
        raise NotImplementedError
