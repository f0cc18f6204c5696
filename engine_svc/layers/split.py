"""A layer's matrices while they are being loaded: parameters of which every rank holds a part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.parameter import LoadedParameter, TensorSlice, take
from engine_svc.layers.part import Layout as Layout
from engine_svc.layers.part import Part as Part
from engine_svc.ops.weights import Weight, side_by_side
from engine_svc.quantization.base import OUTPUTS, Axis, LayerMethod, ParameterSpec, PlaceKind

Index = tuple[slice, ...]


@dataclass(frozen=True)
class _Place:
    """Where the entries of one matrix are, in the parameter and in checkpoints."""

    held: Index  # in the parameter
    alone: Index  # in a checkpoint tensor of this matrix alone
    # (in the parameter, in a checkpoint tensor of all matrices); None means it cannot be cut out of one.
    among: Sequence[tuple[Index, Index]] | None
    alone_shape: Sequence[int]  # of the whole checkpoint tensor of this matrix
    among_shape: Sequence[int]  # of the whole checkpoint tensor of all matrices


@dataclass(frozen=True)
class Split:
    """A rank's part of one or more matrices that stand below each other and share their inputs."""

    outputs: Mapping[str, Part]  # by name
    inputs: Part
    layout: Layout = Layout()  # of checkpoints that hold the matrices as one
    above: int = 0  # outputs of other matrices before these, in a checkpoint tensor that holds all of them
    below: int = 0  # outputs of other matrices after these

    def shape(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """The shape of this rank's parameter with these axes."""
        rows = sum(part.count for part in self.outputs.values())
        total = sum(part.total for part in self.outputs.values()), self.inputs.total
        held = _index(axes, ((0, rows), (0, self.inputs.count)), total)
        return tuple(entries.stop for entries in held)

    def alone(self) -> dict[str, Split]:
        """The split of each matrix by itself."""
        total = sum(part.total for part in self.outputs.values())
        found = {}
        for name, above in self.layout.above(self.outputs).items():
            part = self.outputs[name]
            below, layout = total - above - part.total, replace(self.layout, order=())
            found[name] = replace(self, outputs={name: part}, layout=layout, above=above, below=below)
        return {name: found[name] for name in self.outputs}

    def places(self, axes: Sequence[Axis]) -> dict[str, _Place]:
        """The places of each matrix's entries, by name.

        Raises:
            ValueError: an entry of the parameter would have to be cut in two.
        """
        found, held, above = {}, 0, self.layout.above(self.outputs)
        inputs = self.inputs
        outputs = sum(part.total for part in self.outputs.values()) + self.above + self.below
        for name, part in self.outputs.items():
            totals, mine = (part.total, inputs.total), (inputs.first, inputs.count)
            found[name] = _Place(
                _index(axes, ((held, part.count), (0, inputs.count)), totals),
                _index(axes, ((part.first, part.count), mine), totals),
                self._among(axes, part, held, self.above + above[name], outputs),
                _shape(axes, totals),
                _shape(axes, (outputs, inputs.total)),
            )
            held += part.count
        return found

    def _among(
        self, axes: Sequence[Axis], part: Part, held: int, above: int, outputs: int
    ) -> Sequence[tuple[Index, Index]] | None:
        inputs, totals = self.inputs, (part.total, self.inputs.total)
        found = []
        try:
            for first, count in self.layout.pieces(part, above, outputs):
                own = _index(axes, ((held, count), (0, inputs.count)), totals)
                found.append((own, _index(axes, ((first, count), (inputs.first, inputs.count)), totals)))
                held += count
        except ValueError:
            if len(self.outputs) > 1:
                raise
            return None
        return found


def _index(axes: Sequence[Axis], ranges: tuple[tuple[int, int], ...], totals: tuple[int, int]) -> Index:
    """The index of a range of features.

    Args:
        ranges: (first, count) of outputs and of inputs.
        totals: how many outputs and inputs there are in all.
    """
    found = []
    for axis in axes:
        side = 0 if axis.along == "outputs" else 1
        found.append(axis.range(*((0, totals[side]) if axis.whole else ranges[side])))
    return tuple(found)


def _shape(axes: Sequence[Axis], totals: tuple[int, int]) -> tuple[int, ...]:
    """The shape of a checkpoint's tensor, which has all outputs and inputs."""
    return tuple(each.stop for each in _index(axes, ((0, totals[0]), (0, totals[1])), totals))


@dataclass(frozen=True)
class ExpertSlots:
    """The experts that a rank holds."""

    experts: tuple[int, ...]  # of each slot
    total: int

    def holding(self, expert: int) -> list[int]:
        """The slots of an expert; empty if only other ranks hold it.

        Raises:
            ValueError: there is no such expert.
        """
        if not 0 <= expert < self.total:
            raise ValueError(f"expert {expert} in the checkpoint, of {self.total}")
        return [slot for slot, each in enumerate(self.experts) if each == expert]


def split_parameter(
    spec: ParameterSpec, split: Split, device: torch.device, slots: ExpertSlots | None = None
) -> LoadedParameter:
    """A parameter that loads this rank's part, from checkpoint tensors of single matrices or of all together.

    Args:
        slots: gives the parameter a leading dimension for these experts, and shards named `<expert>.<matrix>`.
            Other experts are not read.

    Raises:
        ValueError: the parameter cannot be split in this way.
    """
    places = split.places(spec.axes)
    shape = split.shape(spec.axes)
    if slots is not None:
        shards = [f"{expert}.{name}" for expert in slots.experts for name in places]
        parameter = LoadedParameter((len(slots.experts), *shape), spec.dtype, device, shards)
    else:
        parameter = LoadedParameter(shape, spec.dtype, device, tuple(places))
    parameter.default = spec.default

    def load(source: TensorSlice, wanted: str) -> None:
        expert, _, matrix = wanted.rpartition(".")
        if not expert or slots is None:
            load_into(parameter, source, matrix, "")
            return
        for slot in slots.holding(int(expert)):
            load_into(parameter[slot], source, matrix, f"{expert}.")

    def load_into(target: torch.Tensor, source: TensorSlice, matrix: str, prefix: str) -> None:
        for name, place in places.items():
            if matrix not in (name, ""):
                continue
            held = target[place.held]
            if spec.is_scalar and math.prod(source.get_shape()) == 1:
                parameter.fill(prefix + name, held, source)
            elif matrix:
                parameter.write(prefix + name, held, source, place.alone, place.alone_shape)
            elif place.among is None:
                raise ValueError(f"the part {name} cannot be cut out of a tensor of all parts")
            else:
                for own, among in place.among:
                    parameter.write(prefix + name, target[own], source, among, place.among_shape)

    parameter.loader = load
    return parameter


def bias_of(dtype: torch.dtype) -> ParameterSpec:
    """The bias of a matrix's outputs; the same for every form of matrix."""
    return ParameterSpec("bias", dtype, (OUTPUTS,))


def features_together(context: LayerContext, part: str, along: Literal["outputs", "inputs"]) -> int:
    """How many features of an expert's matrix share parameter entries and must stay on one rank."""
    method = context.quantization.layer(context.place("experts", part))
    axes = [axis for spec in method.parameters() for axis in spec.axes]
    return math.lcm(*(axis.features for axis in axes if axis.along == along and not axis.whole))


@dataclass(frozen=True)
class Held:
    """Matrices of one form, whose parameters are in a module until they are loaded."""

    module: torch.nn.Module
    method: LayerMethod

    def take(self) -> Weight:
        """Builds the weight, and removes the parameters from the module."""
        taken = {spec.name: take(self.module.get_parameter(spec.name)) for spec in self.method.parameters()}
        for name in taken:
            delattr(self.module, name)
        return self.method.weight(taken)


def hold(
    layer: PackedLayer, module: torch.nn.Module, split: Split, kind: PlaceKind, context: LayerContext,
    slots: ExpertSlots | None = None,
) -> tuple[Held, ...]:  # fmt: skip
    """Gives a module the parameters that the model's quantization method needs for its matrices.

    Matrices of one form share parameters. Otherwise each has its own, in a submodule with the matrix's name.

    Args:
        layer: the module itself, or the layer that contains it.
        slots: see split_parameter.

    Raises:
        ValueError: a matrix cannot be split in this way.
    """
    places = {name: context.place(kind, name) for name in split.outputs}
    methods = {name: context.quantization.layer(place) for name, place in places.items()}
    wanted = {spec.name for method in methods.values() for spec in method.parameters()}
    layer.ignored |= frozenset[str]().union(*(method.ignored for method in methods.values())) - wanted
    try:
        return tuple(_held(module, methods, split, context.device, slots))
    except ValueError as error:
        raise ValueError(f"{next(iter(places.values())).names[0]}: {error}") from error


def _held(
    module: torch.nn.Module, methods: Mapping[str, LayerMethod], split: Split, device: torch.device,
    slots: ExpertSlots | None,
) -> Iterator[Held]:  # fmt: skip
    first = next(iter(methods.values()))
    if all(method == first for method in methods.values()) and _can_be_together(first, split):
        yield _add_parameters(module, first, split, device, slots)
        return
    for name, alone in split.alone().items():
        module.add_module(name, child := torch.nn.Module())
        yield _add_parameters(child, methods[name], alone, device, slots)


def _can_be_together(method: LayerMethod, split: Split) -> bool:
    if len(split.outputs) == 1:
        return True
    for spec in method.parameters():
        if not any(axis.along == "outputs" for axis in spec.axes):
            return False
        try:
            split.places(spec.axes)
        except ValueError:
            return False
    return True


def _add_parameters(
    module: torch.nn.Module, method: LayerMethod, split: Split, device: torch.device, slots: ExpertSlots | None
) -> Held:
    for spec in method.parameters():
        module.register_parameter(spec.name, split_parameter(spec, split, device, slots))
    return Held(module, method)


def take_all(held: Sequence[Held]) -> list[Weight]:
    """The weights of all matrices; neighbors of the same kind and form are joined into one."""
    return side_by_side([each.take() for each in held])
