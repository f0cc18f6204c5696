"""The contract of a quantisation method: which parameters a layer has, how they are split, and which weight they make.

A layer asks the model's method for its own, loads each rank's part of the parameters by the axes that they have, and
hands them back for a weight. What a method does not say stays the layer's own: biases, sums over ranks.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from engine_svc.ops.base import Ops
from engine_svc.ops.weights import Weight
from engine_svc.quantization.source import Tensors
from quire.errors import StartupError


@dataclass(frozen=True)
class Axis:
    """A dimension of a parameter: what it runs along, and how finely.

    For a plain weight, an entry stands for a feature. With 4-bit weights, eight features share an entry of int32 that
    packs them (`features=8`); a scale by group has an entry for each 128 features, say; a block format has so many
    bytes for so many features (`features=256, entries=144`). What each rank needs all of, however it is split, is
    `whole`: the scales of groups whose inputs stand in another order, say.
    """

    along: Literal["outputs", "inputs"]
    features: int = 1
    entries: int = 1
    whole: bool = False

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
# One entry for all inputs, such as the scale of an output.
SINGLE = Axis("inputs", features=1 << 62, whole=True)


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter of a layer."""

    name: str  # in checkpoints, behind the layer's
    dtype: torch.dtype
    axes: tuple[Axis, ...]
    # A checkpoint may hold one number for a whole matrix, such as its scale, which becomes that of each entry: a layer
    # may hold several matrices side by side (query, key and value; gate and up).
    is_scalar: bool = False
    # What it is where a checkpoint has none; None: each must have it.
    default: float | None = None


Parameters = Mapping[str, torch.Tensor]  # a layer's by their names, as far as they are this rank's


PlaceKind = Literal["linear", "router", "experts", "embedding", "head"]


@dataclass(frozen=True)
class Place:
    """Which matrix of a model it is."""

    kind: PlaceKind
    names: Sequence[str]  # of its module in checkpoints: alone, and as a part of one that holds several

    def is_any_of(self, patterns: Sequence[str]) -> bool:
        """Whether a list of modules, as configurations have them, names it or one that it is in."""
        listed = {pattern.strip(".") for pattern in patterns}
        return any(run in listed for name in self.names for run in _runs(name))


def _runs(name: str) -> Iterator[str]:
    """Parts of a name that stand behind each other."""
    parts = name.split(".")
    for start, end in itertools.combinations(range(len(parts) + 1), 2):
        yield ".".join(parts[start:end])


class LayerMethod(ABC):
    """How a layer's matrix is held. Frozen dataclasses: what is equal is loaded together."""

    # Of tensors beside the parameters that a checkpoint may have and that say nothing new.
    ignored: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Those of a matrix [outputs, inputs], of a linear layer or an expert."""

    @abstractmethod
    def weight(self, parameters: Parameters) -> Weight:
        """What they stand for, once all of them are loaded.

        Args:
            parameters: each [its entries along its axes]; with experts, one dimension more before the others.
        """


@dataclass(frozen=True)
class ModelForm:
    """What methods are made for."""

    ops: Ops
    dtype: torch.dtype  # of inputs and outputs
    # What the user says in config.json's words of how weights are to be quantized as they load.
    wanted: Mapping[str, Any] = field(default_factory=dict)


class QuantizationMethod(ABC):
    """One for each model and rank."""

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> QuantizationMethod:
        """The method of a checkpoint with this `quantization_config`.

        Raises:
            StartupError: it asks for what is not supported.
        """
        raise StartupError(f"Checkpoints quantized by {settings.get('quant_method')} are not supported.")

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> QuantizationMethod:
        """The method that quantizes a checkpoint of 16 or 32 bits as it is loaded.

        Args:
            name: that --quantization gives.

        Raises:
            StartupError: the method only reads checkpoints that hold such weights.
        """
        raise StartupError(
            f"--quantization {name} reads checkpoints that are quantized so, and this one is not. Take one that is, "
            "or --quantization int8, which quantizes any while loading it."
        )

    def adapted_name(self, name: str) -> str:
        """What `adapted` calls a checkpoint's tensor."""
        return name

    def adapted(self, tensors: Callable[[], Tensors]) -> Tensors:
        """A checkpoint's tensors, such as parameters can take their parts of: with a dimension for each of their axes.

        Args:
            tensors: goes through all of the checkpoint's, each time that it is called.

        Raises:
            StartupError: they are not in the form that the configuration says.
        """
        return tensors()

    @abstractmethod
    def layer(self, place: Place) -> LayerMethod:
        """The method of one matrix.

        Raises:
            StartupError: it has a form that is not supported.
        """
