"""Mixture-of-experts layers: a rank holds a range of each expert's features, or a subset of whole experts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.expert_exchange import exchange_for
from engine_svc.layers.expert_routes import ExpertRoutes
from engine_svc.layers.fused_experts import FusedForm
from engine_svc.layers.parameter import LoadedParameter, TensorSlice, take
from engine_svc.layers.split import (
    ExpertSlots,
    Part,
    Split,
    bias_of,
    features_together,
    hold,
    split_parameter,
    take_all,
)
from engine_svc.ops.base import ExpertAdapters, ExpertsForm, ExpertsProduct
from engine_svc.ops.weights import Weight, bytes_of, wide, write_bytes
from engine_svc.parallel.balance import Move
from engine_svc.parallel.placement import STRATEGIES, Placement


@dataclass(frozen=True)
class ExpertsShape:
    """The number and size of experts, and how a checkpoint may hold them."""

    count: int
    hidden_size: int
    chosen: int  # experts per token
    size: int  # features inside an expert
    bias: bool
    fused: FusedForm = FusedForm()


class Experts(PackedLayer):
    """The experts of one layer: feed-forward networks, gated or not, of which each token goes through a few."""

    def __init__(self, shape: ExpertsShape, form: ExpertsForm, *, context: LayerContext) -> None:
        """
        Args:
            form: without biases, which come with the weights.
        """
        super().__init__()
        self._context, self._shape, self._form = context, shape, form
        self._product: ExpertsProduct | None = None
        self._adapters: Callable[[torch.Tensor], ExpertAdapters | None] = lambda hidden: None
        self._routes = _routes(shape, context)
        self._counts: torch.Tensor | None = None  # int64 [experts]
        self._exchange = exchange_for(context.sharing.exchange, context.groups, self._routes)
        mine, whole = _features(shape.size, context), Part(0, shape.hidden_size, shape.hidden_size)
        self._inner = mine
        self._slots = ExpertSlots(_own(shape, self._routes, context), shape.count)
        splits = {
            "gate_up": Split(dict.fromkeys(("gate", "up") if form.is_gated else ("up",), mine), whole),
            "down": Split({"down": whole}, mine),
        }
        self._held = {}
        for name, split in splits.items():
            self.add_module(name, module := torch.nn.Module())
            self._held[name] = hold(self, module, split, "experts", context, self._slots)
            if shape.bias:
                bias = split_parameter(bias_of(context.dtype), split, context.device, self._slots)
                module.register_parameter("bias", bias)
            for kind, parameter in module.named_parameters():
                if isinstance(parameter, LoadedParameter):
                    self._load_fused(parameter, name, kind)

    def _load_fused(self, parameter: LoadedParameter, name: str, kind: str) -> None:
        """Lets the parameter also load tensors that hold all experts, or the gates or ups of all."""
        load_one, shape = parameter.loader, self._shape

        def load(source: TensorSlice, part: str) -> None:
            if part and not part.startswith("."):
                load_one(source, part)
                return
            whole = shape.fused.whole(source, shape.count)
            if list(whole.get_shape()[:1]) != [shape.count]:
                raise ValueError(
                    f"shape {list(source.get_shape())} in the checkpoint does not fit {shape.count} experts"
                )
            for index in dict.fromkeys(self._slots.experts):
                is_both = name == "gate_up" and not part
                one = shape.fused.expert(
                    whole, index, is_gate_up=is_both, is_down=name == "down", is_plain=kind == "weight"
                )
                load_one(one, f"{index}{part or '.'}")

        parameter.loader = load

    def pack(self) -> None:
        """See PackedLayer.pack."""
        gate_up, down = (self._take_one(name) for name in ("gate_up", "down"))
        self._product = self._context.ops.experts(gate_up, down, self._form_with_biases())
        del self._held
        # Expert adapters work only with gates, and only if this rank computes its own tokens with all experts.
        # Elsewhere, such adapters are rejected by the names of their tensors.
        is_alone = self._routes is None and self._context.groups.layout.data == 1
        if self._context.adapters is not None and is_alone and self._form.is_gated:
            shape = self._shape
            self._adapters = self._context.adapters.experts(
                self._context.path, shape.count, self._inner, shape.hidden_size
            )

    def weights(self) -> Sequence[torch.Tensor]:
        """See PackedLayer.weights."""
        return () if self._product is None else self._product.held

    def _take_one(self, name: str) -> Weight:
        """The weight of `name`; gate and up matrices of different forms are dequantized and joined."""
        weights = take_all(self._held[name])
        if len(weights) == 1:
            return weights[0]
        return torch.cat([wide(each, self._context.dtype) for each in weights], -2)

    def _form_with_biases(self) -> ExpertsForm:
        if not self._shape.bias:
            return self._form
        inside, outside = (take(self.get_parameter(f"{name}.bias")) for name in ("gate_up", "down"))
        # The ranks' results are summed, so only one of them may include the bias.
        is_ours = self._routes is not None or self._context.groups.expert.rank == 0
        return replace(self._form, gate_up_bias=inside, down_bias=outside if is_ours else None)

    def forward(self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """The chosen experts' weighted sum, the same on every rank.

        Args:
            hidden: [tokens, hidden_size]
            weights: float32 [tokens, chosen]
            expert_ids: int64 [tokens, chosen]; -1 is no expert
        """
        if self._counts is not None:
            chosen = expert_ids.flatten()
            # torch.bincount would wait for the GPU.
            self._counts.scatter_add_(0, chosen.clamp(min=0), (chosen >= 0).to(chosen.dtype))
        output = self._exchange(hidden, weights, expert_ids, self._compute)
        return self._context.groups.tensor.all_reduce(output) if len(output) else output

    def _compute(self, hidden: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        assert self._product is not None
        return self._product(hidden, weights, slots, self._adapters(hidden)) if len(hidden) else hidden

    def count_tokens(self) -> torch.Tensor:
        """Starts counting this rank's tokens per expert; returns the counter, int64 [experts], updated in each pass."""
        self._counts = torch.zeros(self._shape.count, dtype=torch.int64, device=self._context.device)
        return self._counts

    @property
    def placement(self) -> Placement:
        """Where the experts are; only if ranks have whole experts."""
        assert self._routes is not None
        return self._routes.placement

    @property
    def layout(self) -> str:
        """ExpertsProduct.layout with the dtypes and shapes of the held tensors."""
        assert self._product is not None
        shapes = ", ".join(f"{each.dtype} {list(each.shape[1:])}" for each in self._product.held)
        return f"{self._product.layout}: {shapes}"

    def move(self, planned: Sequence[Move], placement: Placement) -> None:
        """Exchanges experts with other ranks, and uses the new placement from then on.

        All ranks must be called with the same moves. Allocates memory for the experts sent and received.
        """
        assert self._product is not None
        assert self._routes is not None
        group, held = self._context.groups.expert, self._product.held
        going = sorted((each for each in planned if each.source_rank == group.rank), key=lambda each: each.rank)
        coming = sorted((each for each in planned if each.rank == group.rank), key=lambda each: each.source_rank)
        counts = Counter(each.rank for each in going), Counter(each.source_rank for each in coming)
        sent, received = ([count[rank] for rank in range(group.world_size)] for count in counts)
        rows = [bytes_of([tensor[each.source_slot] for tensor in held]) for each in going]
        width = len(bytes_of([tensor[0] for tensor in held]))
        sending = torch.stack(rows) if rows else torch.empty((0, width), dtype=torch.uint8, device=self._context.device)
        for each, row in zip(coming, group.exchange_rows(sending, sent, received), strict=True):
            write_bytes(row, [tensor[each.slot] for tensor in held])
        self._routes.follow(placement)

    def help_others(self) -> None:
        """Computes other data ranks' tokens in a pass in which this rank has none of its own."""
        nothing = torch.empty((0, self._shape.hidden_size), dtype=self._context.dtype, device=self._context.device)
        weights = torch.empty((0, self._shape.chosen), dtype=torch.float32, device=nothing.device)
        self(nothing, weights, torch.empty(weights.shape, dtype=torch.int64, device=nothing.device))


def _routes(shape: ExpertsShape, context: LayerContext) -> ExpertRoutes | None:
    """Where experts are. None means every rank has a part of each expert.

    Raises:
        ValueError: there are more ranks than experts.
    """
    groups, sharing = context.groups, context.sharing
    if groups.layout.expert == 1:
        return None
    placement = STRATEGIES[sharing.strategy](shape.count, groups.expert.world_size, sharing.redundant)
    return ExpertRoutes(placement, groups.layout, groups.tensor.rank, context.device)


def _own(shape: ExpertsShape, routes: ExpertRoutes | None, context: LayerContext) -> tuple[int, ...]:
    if routes is None:
        return tuple(range(shape.count))
    return routes.placement.slots[context.groups.expert.rank]


def _features(size: int, context: LayerContext) -> Part:
    """This rank's part of the features inside an expert.

    Features that share a scale or the like stay together, so some ranks may have more than others.

    Raises:
        ValueError: there are more ranks than such groups of features.
    """
    group = context.groups.expert
    if context.groups.layout.expert > 1 or group.world_size == 1:
        return Part(0, size, size)
    together = math.lcm(
        features_together(context, "up", "outputs"),
        features_together(context, "down", "inputs"),
    )
    unit = together if size % together == 0 else 1
    if size // unit < group.world_size:
        raise ValueError(
            f"the {size} features of an expert, by {unit}, cannot be divided among {group.world_size} ranks"
        )
    first, last = (rank * (size // unit) // group.world_size * unit for rank in (group.rank, group.rank + 1))
    return Part(first, last - first, size)
