"""What every layer is built with."""

from __future__ import annotations

from dataclasses import dataclass

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


class PackedLayer(torch.nn.Module):
    """A layer that, once loaded, turns its weight into whatever form its product is computed from."""

    def pack(self) -> None:
        """Called once, when the weights are loaded; frees those that are not needed any more."""
        raise NotImplementedError
