"""What every layer is built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine_svc.layers.part import Part
from engine_svc.ops.base import Ops, Product
from engine_svc.parallel.group import ParallelGroups
from engine_svc.quantization.base import QuantizationMethod


class Adapters(Protocol):
    """What adds low-rank adapters to layers, each of which asks for it as it packs; see lora/layers.py."""

    def matrix(self, path: str, outputs: Mapping[str, Part], inputs: Part, product: Product) -> Product:
        """A product that adds what adapters change of it.

        Args:
            path: of the layer.
            outputs: of its matrices by their names, which stand below each other.
        """
        ...


@dataclass(frozen=True)
class LayerContext:
    """One per model and rank."""

    groups: ParallelGroups
    dtype: torch.dtype
    device: torch.device
    ops: Ops
    quantization: QuantizationMethod
    path: str = ""  # of the layer in the model
    adapters: Adapters | None = None  # None: none are served

    def adapted(self, product: Product, outputs: Mapping[str, Part], inputs: Part) -> Product:
        """The product of the layer at this path, with what adapters change of it."""
        if self.adapters is None:
            return product
        return self.adapters.matrix(self.path, outputs, inputs, product)

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
