"""Linear layers, split over ranks by output (column) or by input (row) features."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.parallel.group import ParallelGroup


class ColumnParallelLinear(torch.nn.Module):
    """One or more matrices side by side, of each of which every rank holds a range of rows.

    Subclasses and users name the parts ("q", "k", "v"; "gate", "up"; "" for a single one).
    """

    def __init__(
        self,
        input_size: int,
        parts: Mapping[str, tuple[int, int]],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """
        Args:
            parts: name → (first row in the checkpoint's matrix, number of rows), of this rank.
        """
        super().__init__()
        self._parts = dict(parts)
        rows = sum(size for _, size in parts.values())
        self.weight = LoadedParameter((rows, input_size), dtype, device, tuple(parts))
        self.weight.load = self._load_weight
        self.bias = LoadedParameter((rows,), dtype, device, tuple(parts)) if bias else None
        if self.bias is not None:
            self.bias.load = self._load_bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input_size] → [tokens, rows of this rank]."""
        return F.linear(hidden, self.weight, self.bias)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight[self._target(part)], source, (self._source(part), slice(None)))

    def _load_bias(self, source: TensorSlice, part: str) -> None:
        if self.bias is not None:
            self.bias.write(part, self.bias[self._target(part)], source, (self._source(part),))

    def _source(self, part: str) -> slice:
        first, size = self._parts[part]
        return slice(first, first + size)

    def _target(self, part: str) -> slice:
        start = 0
        for name, (_, size) in self._parts.items():
            if name == part:
                return slice(start, start + size)
            start += size
        raise KeyError(part)


def even_parts(group: ParallelGroup, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Each matrix cut into equal ranges of rows, one for each rank."""
    parts = {}
    for name, size in sizes.items():
        share = group.divide(size, f"output features of {name or 'a linear layer'}")
        parts[name] = (group.rank * share, share)
    return parts


def qkv_parts(group: ParallelGroup, num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, tuple[int, int]]:
    """Query heads are divided; key and value heads too, or repeated where there are fewer of them than ranks."""
    query = group.divide(num_heads, "attention heads") * head_dim
    if num_kv_heads >= group.world_size:
        first = group.rank * group.divide(num_kv_heads, "key-value heads")
        count = num_kv_heads // group.world_size
    else:
        first, count = group.rank * num_kv_heads // group.world_size, 1
    key_value = (first * head_dim, count * head_dim)
    return {"q": (group.rank * query, query), "k": key_value, "v": key_value}


class RowParallelLinear(torch.nn.Module):
    """A matrix of which every rank holds a range of columns; the ranks' results are summed."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool,
        group: ParallelGroup,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._group = group
        self._share = group.divide(input_size, "input features of a linear layer")
        self.weight = LoadedParameter((output_size, self._share), dtype, device)
        self.weight.load = self._load_weight
        self.bias = LoadedParameter((output_size,), dtype, device) if bias else None
        if self.bias is not None:
            self.bias.load = self._load_bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input features of this rank] → [tokens, output_size], the same on every rank."""
        if self._group.world_size == 1:
            return F.linear(hidden, self.weight, self.bias)
        output = self._group.all_reduce(F.linear(hidden, self.weight))
        return output if self.bias is None else output + self.bias

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        start = self._group.rank * self._share
        self.weight.write(part, self.weight, source, (slice(None), slice(start, start + self._share)))

    def _load_bias(self, source: TensorSlice, part: str) -> None:
        if self.bias is not None:
            self.bias.write(part, self.bias, source, (slice(None),))
