"""The contract of a quantisation method: which parameters a layer has, how they are split, and what multiplies them.

Linear layers and experts ask their method for parameters, load each rank's part of them by the axes that the method
gives, and hand them back for a product. What a method does not say stays the layer's own: biases, sums over ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from engine_svc.ops.base import ExpertsProduct, Ops, Product


@dataclass(frozen=True)
class Axis:
    """A dimension of a parameter: what it runs along, and how finely.

    For a plain weight, an entry stands for a feature. With 4-bit weights, eight features share an entry of int32 that
    packs them (`features=8`); a scale by group has an entry for each 128 features, say; a block format has so many
    bytes for so many features (`features=256, entries=144`).
    """

    along: Literal["outputs", "inputs"]
    features: int = 1
    entries: int = 1

    def range(self, first: int, count: int) -> slice:
        """The entries of `count` features from `first` on; the last one may stand for fewer than the others.

        Raises:
            ValueError: an entry would be cut in two.
        """
        if first % self.features:
            raise ValueError(f"weights in groups of {self.features} {self.along} cannot be split at {first}")
        start = first // self.features * self.entries
        return slice(start, start + -(-count // self.features) * self.entries)


OUTPUTS, INPUTS = Axis("outputs"), Axis("inputs")


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter of a layer."""

    name: str  # in checkpoints, behind the layer's
    dtype: torch.dtype
    axes: tuple[Axis, ...]
    # A checkpoint holds one number for a whole matrix, such as its scale, which becomes that of each entry: a layer may
    # hold several matrices side by side (query, key and value; gate and up).
    is_scalar: bool = False


Weights = Mapping[str, torch.Tensor]  # a layer's parameters by their names, as far as they are this rank's


class QuantizationMethod(ABC):
    """One for each model and rank."""

    def __init__(self, ops: Ops, dtype: torch.dtype) -> None:
        """
        Args:
            dtype: of inputs and outputs.
        """
        self.ops = ops
        self.dtype = dtype

    @abstractmethod
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Those of a matrix [outputs, inputs], of a linear layer or an expert."""

    @abstractmethod
    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Product:
        """A product with a matrix, all of whose parameters are loaded; it may keep them in another form.

        Args:
            weights: each [its entries along its axes].
            bias: [outputs]
        """

    @abstractmethod
    def experts(self, gate_up: Weights, down: Weights) -> ExpertsProduct:
        """The weighted sum of the chosen experts' SwiGLU feed-forward layers, see Ops.experts.

        Args:
            gate_up, down: each [experts, its entries along its axes].
        """
