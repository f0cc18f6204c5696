"""What every layer is built with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.ops.base import ExpertsProduct, Ops, Product
from engine_svc.parallel.group import ParallelGroup


@dataclass(frozen=True)
class LayerContext:
    """One per model and rank."""

    group: ParallelGroup
    dtype: torch.dtype
    device: torch.device
    ops: Ops
    quantization: str | None = None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """A product of a linear layer: quantized if the user wants it."""
        make = self.ops.int8_matrix if self.quantization == "int8" else self.ops.matrix
        return make(weight, bias)

    def experts(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertsProduct:
        """A mixture of experts: quantized if the user wants it."""
        make = self.ops.int8_experts if self.quantization == "int8" else self.ops.experts
        return make(gate_up, down)


class PackedLayer(torch.nn.Module):
    """A layer that, once loaded, turns its weight into whatever form its product is computed from."""

    def pack(self) -> None:
        """Called once, when the weights are loaded; frees those that are not needed any more."""
        raise NotImplementedError
