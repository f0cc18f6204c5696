"""The matrices of adapters: those of one adapter in host memory, and a layer's for all adapters on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from engine_svc.layers.part import Layout, Part
from engine_svc.lora.settings import AdapterSettings
from engine_svc.memory import zeros_when_touched
from engine_svc.ops.base import LowRankMatrices, Ops, RowTiles
from engine_svc.parallel.group import ParallelGroup


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a matrix, up^T down; only this rank's part."""

    down: torch.Tensor  # [rank, inputs]
    up: torch.Tensor  # [rank, outputs], times the adapter's scale


@dataclass(frozen=True)
class MatrixForm:
    """Matrices below each other that adapters can change, and this rank's part of them."""

    outputs: Mapping[str, Part]  # by name
    inputs: Part
    count: int = 1  # number of such layers side by side, such as experts
    is_looked_up: bool = False  # the inputs are tokens: an embedding
    layout: Layout = Layout()  # of adapters that hold the matrices as one
    is_head: bool = False  # of a pooled model's classes, for example, which adapters may replace

    @property
    def vocabulary(self) -> Part:
        """The tokens of the head's or the embedding's matrix."""
        (outputs,) = self.outputs.values()
        return self.inputs if self.is_looked_up else outputs

    def shape(self, outputs: int) -> tuple[int, int]:
        """(outputs, inputs) of a module with this many outputs, over all ranks."""
        return outputs, self.inputs.total


@dataclass(frozen=True)
class AdapterMatrices:
    """This rank's part of an adapter, in host memory."""

    # By layer path and matrix name. For several layers side by side, such as experts, names have an index: `3.gate`.
    parts: Mapping[str, Mapping[str, LowRank]]
    # By layer path: matrices that replace the whole matrix of the head or the embedding [tokens, hidden_size], or of a
    # pooled model's head.
    whole: Mapping[str, torch.Tensor]
    # By layer path: biases that replace those of a pooled model's head; float32, like the whole matrices there.
    biases: Mapping[str, torch.Tensor] = field(default_factory=dict)


class LowRankStack:
    """A layer's matrices of all adapters, on the device.

    They are divided among ranks like the layer: by outputs, so that each rank shrinks whole rows and expands to its own
    outputs; or by inputs, so that the ranks' results sum up to the whole. Fully sharded, ranks divide the other half of
    the product too, and combine the sums between the two halves.
    """

    def __init__(
        self, form: MatrixForm, settings: AdapterSettings, ops: Ops, group: ParallelGroup, device: torch.device
    ) -> None:
        """
        Args:
            group: the ranks that the layer is divided among.
        """
        self._ops, self._names = ops, list(form.outputs)
        self._shrunk, self._expanded, self._join = _division(form, settings, group)
        groups, parts = settings.max_adapters * form.count, len(self._names)
        sizes = [part.count for part in form.outputs.values()]
        if self._expanded is not None:
            sizes = [self._expanded.count]
        self._starts = torch.tensor([0, *sizes], device=device).cumsum(0)
        self._columns = [slice(end - size, end) for size, end in zip(sizes, self._starts[1:].tolist(), strict=True)]

        down = (groups, parts, self._shrunk.count, form.inputs.count)
        self._down = zeros(down, settings.dtype, device)
        self._up = zeros((groups, self._shrunk.total, sum(sizes)), settings.dtype, device)
        self._ranks = torch.zeros((groups, parts), dtype=torch.int32, device=device)
        self._shrunk_ranks = torch.zeros_like(self._ranks)

    @property
    def matrices(self) -> LowRankMatrices:
        """The matrices of all groups; only if they are not divided further than the layer."""
        return LowRankMatrices(self._down, self._up, self._ranks, self._starts)

    def write(self, group: int, found: Mapping[str, LowRank]) -> None:
        """Writes an adapter's matrices, by the parts' names, to a group, replacing what it had."""
        ranks = [len(found[name].down) if name in found else 0 for name in self._names]
        shrunk = [min(max(rank - self._shrunk.first, 0), self._shrunk.count) for rank in ranks]
        for index, name in enumerate(self._names):
            if name in found:
                first, rank = self._shrunk.first, ranks[index]
                self._down[group, index, : shrunk[index]] = found[name].down[first : first + shrunk[index]]
                self._up[group, :rank, self._columns[index]] = self._own(found[name].up)
        self._ranks[group] = torch.tensor(ranks, dtype=torch.int32)
        self._shrunk_ranks[group] = torch.tensor(shrunk, dtype=torch.int32)

    def _own(self, up: torch.Tensor) -> torch.Tensor:
        if self._expanded is None:
            return up
        return up[:, self._expanded.first : self._expanded.first + self._expanded.count]

    def add(self, hidden: torch.Tensor, output: torch.Tensor, tiles: RowTiles) -> None:
        """Adds the adapters' products with hidden [rows, inputs] to output [rows, outputs]."""
        self.expand(self._ops.shrink(hidden, self._down, self._shrunk_ranks, tiles), output, tiles)

    def expand(self, sums: torch.Tensor, output: torch.Tensor, tiles: RowTiles) -> None:
        """The second half of `add`, from this rank's sums [tiles, TILE_ROWS, parts, rank]."""
        sums = self._join(sums)
        if self._expanded is not None:
            output = output[:, self._expanded.first : self._expanded.first + self._expanded.count]
        self._ops.expand(sums, self._up, self._ranks, self._starts, tiles, output)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros on the device; on a CPU, memory is taken only when it is touched."""
    if device.type == "cpu":
        return zeros_when_touched(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


Join = Callable[[torch.Tensor], torch.Tensor]


def _division(form: MatrixForm, settings: AdapterSettings, group: ParallelGroup) -> tuple[Part, Part | None, Join]:
    """How a layer's adapters are divided among processes.

    Returns (the part of the adapters' rank that this process shrinks to; the outputs that it expands to, None for all
    of the layer's; how the processes combine the sums between the halves). Fully sharded, a layer divided by outputs
    has its first halves divided by the adapters' rank, and a layer divided by inputs its second halves by outputs.
    """
    by_inputs = form.inputs.count < form.inputs.total
    by_outputs = any(part.count < part.total for part in form.outputs.values())
    whole = Part(0, settings.max_rank, settings.max_rank)
    if not settings.fully_sharded or not (by_inputs or by_outputs):
        return whole, None, lambda sums: sums
    if by_inputs:
        (outputs,) = form.outputs.values()
        first, last = (rank * outputs.total // group.world_size for rank in (group.rank, group.rank + 1))
        return whole, Part(first, last - first, outputs.total), group.all_reduce
    share = -(-settings.max_rank // group.world_size)
    return Part(group.rank * share, share, group.world_size * share), None, group.all_gather_last
