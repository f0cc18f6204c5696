"""Parameters of which every rank holds a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine_svc.layers.parameter import LoadedParameter, TensorSlice, take
from engine_svc.quantization.base import Axis, ParameterSpec, QuantizationMethod, Weights

Index = tuple[slice, ...]


@dataclass(frozen=True)
class Part:
    """Which features of a matrix in the checkpoint are this rank's."""

    first: int
    count: int
    total: int


@dataclass(frozen=True)
class _Place:
    """Where the entries of one of the matrices are."""

    held: Index  # in the parameter
    alone: Index  # in a checkpoint's tensor of this matrix
    among: Index  # in a checkpoint's tensor of all matrices


@dataclass(frozen=True)
class Split:
    """What a rank holds of one or more matrices below each other, which share their inputs."""

    outputs: Mapping[str, Part]  # by name, in the order in which a checkpoint that holds them as one has them
    inputs: Part

    def shape(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """Of a parameter with these axes."""
        rows = sum(part.count for part in self.outputs.values())
        whole = _index(axes, (0, rows), (0, self.inputs.count))
        return tuple(entries.stop for entries in whole)

    def places(self, axes: Sequence[Axis]) -> dict[str, _Place]:
        """By the matrices' names.

        Raises:
            ValueError: entries would have to be cut in two.
        """
        found, held, below = {}, 0, 0
        mine = self.inputs.first, self.inputs.count
        for name, part in self.outputs.items():
            found[name] = _Place(
                _index(axes, (held, part.count), (0, self.inputs.count)),
                _index(axes, (part.first, part.count), mine),
                _index(axes, (below + part.first, part.count), mine),
            )
            held += part.count
            below += part.total
        return found


def _index(axes: Sequence[Axis], outputs: tuple[int, int], inputs: tuple[int, int]) -> Index:
    """Each range is the first feature and how many."""
    return tuple(axis.range(*(outputs if axis.along == "outputs" else inputs)) for axis in axes)


def split_parameter(spec: ParameterSpec, split: Split, device: torch.device, num_experts: int = 0) -> LoadedParameter:
    """A parameter that loads this rank's part, from tensors of single matrices or of all of them.

    Args:
        num_experts: the parameter has a dimension more before the others, and shards named `<expert>.<matrix>`;
            0 for none.

    Raises:
        ValueError: it cannot be split so.
    """
    places = split.places(spec.axes)
    shape = split.shape(spec.axes)
    if num_experts:
        shards = [f"{expert}.{name}" for expert in range(num_experts) for name in places]
        parameter = LoadedParameter((num_experts, *shape), spec.dtype, device, shards)
    else:
        parameter = LoadedParameter(shape, spec.dtype, device, tuple(places))

    def load(source: TensorSlice, wanted: str) -> None:
        expert, _, matrix = wanted.rpartition(".")
        target = parameter[int(expert)] if expert else parameter
        prefix = f"{expert}." if expert else ""
        for name, place in places.items():
            if matrix not in (name, ""):
                continue
            if spec.is_scalar:
                parameter.fill(prefix + name, target[place.held], source)
            else:
                parameter.write(prefix + name, target[place.held], source, place.alone if matrix else place.among)

    parameter.loader = load
    return parameter


def add_parameters(
    module: torch.nn.Module, method: QuantizationMethod, split: Split, device: torch.device, num_experts: int = 0
) -> None:
    """Gives a module the parameters that the method wants for its matrices; see `split_parameter`."""
    for spec in method.parameters():
        module.register_parameter(spec.name, split_parameter(spec, split, device, num_experts))


def take_parameters(module: torch.nn.Module, method: QuantizationMethod) -> Weights:
    """The same, loaded, which are the module's no more."""
    taken = {spec.name: take(module.get_parameter(spec.name)) for spec in method.parameters()}
    for name in taken:
        delattr(module, name)
    return taken
