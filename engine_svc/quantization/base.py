"""The contract of a quantization method: a layer's parameters, how they are sharded, and the weight made from them.

A layer asks the model's method for its own layer method, loads each rank's part of the parameters according to their
axes, and gets a weight in return. Everything else stays with the layer: biases, sums over ranks.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from engine_svc.ops.base import Ops
from engine_svc.ops.weights import Weight
from engine_svc.quantization.source import Tensors
from quire.errors import StartupError


@dataclass(frozen=True)
class Axis:
    """A dimension of a parameter: what it runs along, and at which granularity.

    For a plain weight, each entry is one feature. With 4-bit weights, eight features may be packed in an int32 entry
    (`features=8`). A group scale may have an entry for each 128 features. A block format has a number of bytes for a
    number of features (`features=256, entries=144`). A dimension that every rank needs all of is `whole`, for example
    that of the scales of groups if inputs are reordered.
    """

    along: Literal["outputs", "inputs"]
    features: int = 1
    entries: int = 1
    whole: bool = False

    def range(self, first: int, count: int) -> slice:
        """The entries of `count` features from `first` on; the last entry may have fewer features than the others.

        Raises:
            ValueError: an entry would be split.
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

    name: str  # in checkpoints, after the layer's name
    dtype: torch.dtype
    axes: tuple[Axis, ...]
    # A checkpoint may have a single number for a whole matrix, such as its scale. It is copied to each entry, as a
    # layer may hold several matrices side by side (query, key and value; gate and up).
    is_scalar: bool = False
    # The value if a checkpoint lacks the parameter; None means checkpoints must have it.
    default: float | None = None


Parameters = Mapping[str, torch.Tensor]  # this rank's part of a layer's parameters, by name


PlaceKind = Literal["linear", "router", "experts", "embedding", "head"]


@dataclass(frozen=True)
class Place:
    """A matrix's place in the model, by which a method chooses its form."""

    kind: PlaceKind
    names: Sequence[str]  # all names its module may have in checkpoints, alone or as a part of a module with several

    def is_any_of(self, patterns: Sequence[str]) -> bool:
        """Whether a list of modules, as in configurations, names it or a module that contains it."""
        return self.is_in({pattern.strip(".") for pattern in patterns})

    def is_in(self, modules: Collection[str]) -> bool:
        """Whether a set of modules' names, without dots around them, names it or a module that contains it."""
        return any(run in modules for name in self.names for run in _runs(name))


def _runs(name: str) -> Iterator[str]:
    """All runs of consecutive components of a dotted name."""
    parts = name.split(".")
    for start, end in itertools.combinations(range(len(parts) + 1), 2):
        yield ".".join(parts[start:end])


class LayerMethod(ABC):
    """The form of a layer's matrix. Subclasses are frozen dataclasses; matrices with equal ones are loaded together."""

    # Names of redundant tensors that a checkpoint may have next to the parameters.
    ignored: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """The parameters of a matrix [outputs, inputs] of a linear layer or an expert."""

    @abstractmethod
    def weight(self, parameters: Parameters) -> Weight:
        """Makes the weight, once all parameters are loaded.

        Args:
            parameters: each with the entries along its axes; experts add a leading dimension.
        """


@dataclass(frozen=True)
class ModelForm:
    """What a method needs to know of the model."""

    ops: Ops
    dtype: torch.dtype  # of inputs and outputs
    # The user's settings for quantization on load, in the words of config.json.
    wanted: Mapping[str, Any] = field(default_factory=dict)


class QuantizationMethod(ABC):
    """A quantization method, with one instance for each model and rank."""

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> QuantizationMethod:
        """Creates the method for a checkpoint with this `quantization_config`.

        Raises:
            StartupError: a setting is not supported.
        """
        raise StartupError(f"Checkpoints quantized by {settings.get('quant_method')} are not supported.")

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> QuantizationMethod:
        """Creates the method that quantizes a 16-bit or 32-bit checkpoint while it is loaded.

        Args:
            name: the value of --quantization.

        Raises:
            StartupError: the method can only read checkpoints that are already quantized with it.
        """
        raise StartupError(
            f"--quantization {name} is for checkpoints that are already quantized in that format, which this one is "
            "not. Use one that is, or --quantization int8, which quantizes any checkpoint while loading it."
        )

    def adapted_name(self, name: str) -> str:
        """The name that `adapted` gives a checkpoint's tensor."""
        return name

    def adapted(self, tensors: Callable[[], Tensors]) -> Tensors:
        """Converts a checkpoint's tensors so that parameters can be sliced from them, with one dimension for each axis.

        Args:
            tensors: returns a new iterator over all tensors of the checkpoint on each call.

        Raises:
            StartupError: the tensors are not in the form that the configuration says.
        """
        return tensors()

    @abstractmethod
    def layer(self, place: Place) -> LayerMethod:
        """The layer method of one matrix.

        Raises:
            StartupError: the matrix has a form that is not supported.
        """
