"""The experts of a mixture: every rank holds a range of each one's features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.fused_experts import FusedForm
from engine_svc.layers.parameter import LoadedParameter, TensorSlice, take
from engine_svc.layers.split import Part, Split, bias_of, features_together, hold, split_parameter, take_all
from engine_svc.ops.base import ExpertAdapters, ExpertsForm, ExpertsProduct
from engine_svc.ops.weights import Weight, wide


@dataclass(frozen=True)
class ExpertsShape:
    """How many and how large, and how a checkpoint may hold them."""

    count: int
    hidden_size: int
    size: int  # features inside one
    bias: bool
    fused: FusedForm = FusedForm()


class Experts(PackedLayer):
    """Gated feed-forward layers, of which each token goes through a few."""

    def __init__(self, shape: ExpertsShape, form: ExpertsForm, *, context: LayerContext) -> None:
        """
        Args:
            form: without biases, which come with the weights.
        """
        super().__init__()
        self._context, self._shape, self._form = context, shape, form
        self._product: ExpertsProduct | None = None
        self._adapters: Callable[[torch.Tensor], ExpertAdapters | None] = lambda hidden: None
        mine, whole = _features(shape.size, context), Part(0, shape.hidden_size, shape.hidden_size)
        self._inner = mine
        splits = {"gate_up": Split({"gate": mine, "up": mine}, whole), "down": Split({"down": whole}, mine)}
        self._held = {}
        for name, split in splits.items():
            self.add_module(name, module := torch.nn.Module())
            self._held[name] = hold(self, module, split, "experts", context, shape.count)
            if shape.bias:
                bias = split_parameter(bias_of(context.dtype), split, context.device, shape.count)
                module.register_parameter("bias", bias)
            for kind, parameter in module.named_parameters():
                if isinstance(parameter, LoadedParameter):
                    self._load_fused(parameter, name, kind)

    def _load_fused(self, parameter: LoadedParameter, name: str, kind: str) -> None:
        """Lets it load tensors that hold all experts, beside those of each."""
        load_one, shape = parameter.loader, self._shape

        def load(source: TensorSlice, part: str) -> None:
            if part:
                load_one(source, part)
                return
            if list(source.get_shape()[:1]) != [shape.count]:
                raise ValueError(
                    f"shape {list(source.get_shape())} in the checkpoint does not fit {shape.count} experts"
                )
            for index in range(shape.count):
                one = shape.fused.expert(source, index, is_gate_up=name == "gate_up", is_plain=kind == "weight")
                load_one(one, f"{index}.")

        parameter.loader = load

    def pack(self) -> None:
        """See PackedLayer.pack."""
        gate_up, down = (self._take_one(name) for name in ("gate_up", "down"))
        self._product = self._context.ops.experts(gate_up, down, self._form_with_biases())
        del self._held
        if self._context.adapters is not None:
            shape = self._shape
            self._adapters = self._context.adapters.experts(
                self._context.path, shape.count, self._inner, shape.hidden_size
            )

    def _take_one(self, name: str) -> Weight:
        """A weight; gate and up matrices of different forms become plain."""
        weights = take_all(self._held[name])
        if len(weights) == 1:
            return weights[0]
        return torch.cat([wide(each, self._context.dtype) for each in weights], -2)

    def _form_with_biases(self) -> ExpertsForm:
        if not self._shape.bias:
            return self._form
        inside, outside = (take(self.get_parameter(f"{name}.bias")) for name in ("gate_up", "down"))
        # Of the ranks' results, which are summed, one has it.
        return replace(
            self._form, gate_up_bias=inside, down_bias=outside if self._context.groups.expert.rank == 0 else None
        )

    def forward(self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """The chosen experts' weighted sum, the same on every rank.

        Args:
            hidden: [tokens, hidden_size]
            weights: float32 [tokens, chosen]
            expert_ids: int64 [tokens, chosen]
        """
        assert self._product is not None
        output = self._product(hidden, weights, expert_ids, self._adapters(hidden))
        return self._context.groups.expert.all_reduce(output)


def _features(size: int, context: LayerContext) -> Part:
    """This rank's part of those inside an expert. Those that share a scale, say, stay together, so that some ranks may
    have more than others.

    Raises:
        ValueError: there are more ranks than such groups.
    """
    together = math.lcm(
        features_together(context, "experts", "gate", "outputs"),
        features_together(context, "experts", "down", "inputs"),
    )
    unit = together if size % together == 0 else 1
    group = context.groups.expert
    if size // unit < group.world_size:
        raise ValueError(
            f"the {size} features of an expert, by {unit}, cannot be divided among {group.world_size} ranks"
        )
    first, last = (rank * (size // unit) // group.world_size * unit for rank in (group.rank, group.rank + 1))
    return Part(first, last - first, size)
