"""Linear layers, split over ranks by output (column) or by input (row) features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.ops.base import Product
from engine_svc.parallel.group import ParallelGroup


@dataclass(frozen=True)
class Part:
    """Which rows of a matrix in the checkpoint are this rank's."""

    first: int
    count: int
    total: int


class ColumnParallelLinear(PackedLayer):
    """One or more matrices side by side, of each of which every rank holds a range of rows.

    Subclasses and users name the parts ("q", "k", "v"; "gate", "up"; "" for a single one).
    """

    def __init__(self, input_size: int, parts: Mapping[str, Part], *, bias: bool, context: LayerContext) -> None:
        """
        Args:
            parts: by name, in the order in which a checkpoint that holds them as one matrix has them.
        """
        super().__init__()
        self._context = context
        self._parts = dict(parts)
        self._product: Product | None = None
        rows = sum(part.count for part in parts.values())
        self.weight = LoadedParameter((rows, input_size), context.dtype, context.device, tuple(parts))
        self.weight.load = self._load_weight
        self.bias = LoadedParameter((rows,), context.dtype, context.device, tuple(parts)) if bias else None
        if self.bias is not None:
            self.bias.load = self._load_bias

    def pack(self) -> None:
        """See PackedLayer.pack."""
        self._product = self._context.linear(self.weight, self.bias)
        del self.weight, self.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input_size] → [tokens, rows of this rank]."""
        assert self._product is not None
        return self._product(hidden)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self._load(self.weight, source, part, lambda rows: (rows, slice(None)))

    def _load_bias(self, source: TensorSlice, part: str) -> None:
        if self.bias is not None:
            self._load(self.bias, source, part, lambda rows: (rows,))

    def _load(
        self, parameter: LoadedParameter, source: TensorSlice, wanted: str, index: Callable[[slice], tuple[slice, ...]]
    ) -> None:
        """Loads one part, or all of them from a checkpoint that holds them one below the other."""
        target, below = 0, 0
        for name, part in self._parts.items():
            if wanted in (name, ""):
                first = below + part.first
                rows = parameter[target : target + part.count]
                parameter.write(name, rows, source, index(slice(first, first + part.count)))
            target += part.count
            below += part.total if wanted == "" else 0


class ReplicatedLinear(PackedLayer):
    """A small matrix that every rank holds whole, never quantized: what it decides matters more than what it costs."""

    def __init__(self, input_size: int, output_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self._product: Product | None = None
        self.weight = LoadedParameter((output_size, input_size), context.dtype, context.device)
        self.weight.load = self._load_weight

    def pack(self) -> None:
        """See PackedLayer.pack."""
        self._product = self._ops.matrix(self.weight, None)
        del self.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input_size] → float32 [tokens, output_size]."""
        assert self._product is not None
        return self._product(hidden, wide=True)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight, source, (slice(None), slice(None)))


def even_parts(group: ParallelGroup, sizes: Mapping[str, int]) -> dict[str, Part]:
    """Each matrix cut into equal ranges of rows, one for each rank."""
    parts = {}
    for name, size in sizes.items():
        share = group.divide(size, f"output features of {name or 'a linear layer'}")
        parts[name] = Part(group.rank * share, share, size)
    return parts


def qkv_parts(group: ParallelGroup, num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, Part]:
    """Query heads are divided; key and value heads too, or repeated where there are fewer of them than ranks."""
    query = group.divide(num_heads, "attention heads") * head_dim
    if num_kv_heads >= group.world_size:
        first = group.rank * group.divide(num_kv_heads, "key-value heads")
        count = num_kv_heads // group.world_size
    else:
        first, count = group.rank * num_kv_heads // group.world_size, 1
    key_value = Part(first * head_dim, count * head_dim, num_kv_heads * head_dim)
    return {"q": Part(group.rank * query, query, num_heads * head_dim), "k": key_value, "v": key_value}


class RowParallelLinear(PackedLayer):
    """A matrix of which every rank holds a range of columns; the ranks' results are summed."""

    def __init__(self, input_size: int, output_size: int, *, bias: bool, context: LayerContext) -> None:
        super().__init__()
        self._context = context
        self._group = context.group
        self._share = context.group.divide(input_size, "input features of a linear layer")
        self._product: Product | None = None
        self.weight = LoadedParameter((output_size, self._share), context.dtype, context.device)
        self.weight.load = self._load_weight
        self.bias = LoadedParameter((output_size,), context.dtype, context.device) if bias else None
        if self.bias is not None:
            self.bias.load = self._load_bias

    def pack(self) -> None:
        """See PackedLayer.pack."""
        # One rank adds the bias, before the sum.
        self._product = self._context.linear(self.weight, self.bias if self._group.rank == 0 else None)
        del self.weight, self.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input features of this rank] → [tokens, output_size], the same on every rank."""
        assert self._product is not None
        return self._group.all_reduce(self._product(hidden))

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        start = self._group.rank * self._share
        self.weight.write(part, self.weight, source, (slice(None), slice(start, start + self._share)))

    def _load_bias(self, source: TensorSlice, part: str) -> None:
        if self.bias is not None:
            self.bias.write(part, self.bias, source, (slice(None),))
