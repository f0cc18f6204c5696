"""The state space layer of Mamba 2 (Dao and Gu 2024), with one rate per head, as in Bamba and Granite 4."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.rows import rows_parameter
from engine_svc.layers.split import Part
from engine_svc.models.attention import StepInputs
from engine_svc.models.recurrent import ChannelConvolution, RecurrentLayer, even_part, rates
from engine_svc.models.recurrent_config import Mamba2Config
from engine_svc.parallel.group import ParallelGroup
from engine_svc.recurrence.base import GatedNorm, LayerState, ScanInputs, ScanParameters, StateShape
from engine_svc.recurrence.registry import create_recurrence


class Mamba2(RecurrentLayer):
    """Mamba 2 layer, see RecurrentLayer. Each rank has a part of the heads, and their groups of writes and reads."""

    def __init__(self, hidden_size: int, config: Mamba2Config, context: LayerContext) -> None:
        """
        Raises:
            ValueError: heads or groups cannot be divided among the ranks.
        """
        super().__init__()
        self._ops, self._recurrence = context.ops, create_recurrence(context.ops)
        group, size = context.groups.tensor, config.heads * config.head_dim
        inner = even_part(group, config.heads, config.head_dim, "heads of a Mamba 2 layer")
        heads = even_part(group, config.heads, 1, "heads of a Mamba 2 layer")
        shared = _groups(group, config)
        self.in_proj = ColumnParallelLinear(
            hidden_size, {"z": inner, "x": inner, "B": shared, "C": shared, "dt": heads}, bias=config.bias,
            context=context.at("in_proj"),
        )  # fmt: skip
        self.conv1d = ChannelConvolution(
            [inner, shared, shared], config.taps, bias=config.convolution_bias, context=context
        )
        self.A_log = rows_parameter([heads], (heads.count,), context, rates)
        self.D, self.dt_bias = (rows_parameter([heads], (heads.count,), context) for _ in range(2))
        self.norm: GroupedNorm | None = None
        if config.norm != "none":
            self.norm = GroupedNorm(inner, config.groups, config.norm_epsilon, config.norm == "gates_first", context)
        output_bias = config.bias if config.output_bias is None else config.output_bias
        self.out_proj = RowParallelLinear(size, hidden_size, bias=output_bias, context=context.at("out_proj"))
        self._multipliers = config.multipliers
        self._projected = (inner.count, self.conv1d.channels, heads.count)
        self._convolved = (inner.count, shared.count, shared.count)
        self._time_limits = config.time_limits
        self.state_shape = StateShape(
            (config.taps - 1, self.conv1d.channels), (heads.count, config.state_size, config.head_dim)
        )

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        gates, mixed, steps = self._project(hidden).split(self._projected, dim=-1)
        mixed = self._recurrence.convolve(mixed, self.conv1d.filters(), state)
        values, writes, reads = mixed.split(self._convolved, dim=-1)
        parameters = ScanParameters(self.A_log, self.D, self.dt_bias, self._time_limits)
        output = self._recurrence.scan_heads(ScanInputs(values, steps, writes, reads), parameters, state)
        if self.norm is not None:
            return self.out_proj(self.norm(output, gates))
        return self.out_proj(self._ops.activate_and_multiply(self._ops.join([gates[:, None], output[:, None]]), "silu"))

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Projects to gates, values, writes, reads and time steps, side by side and scaled."""
        projected = self.in_proj(hidden)
        sizes = (self._projected[0], *self._convolved, self._projected[2])
        for part, factor in zip(projected.split(sizes, dim=-1), self._multipliers, strict=True):
            if factor != 1:
                self._ops.scale(part, factor)
        return projected


class GroupedNorm(torch.nn.Module):
    """RMS norms of groups of gated values; a single group may be spread over all ranks."""

    def __init__(self, part: Part, groups: int, epsilon: float, gates_first: bool, context: LayerContext) -> None:
        """
        Args:
            part: the values of this rank.
            groups: number of groups over all ranks' values.
            gates_first: see GatedNorm.

        Raises:
            ValueError: several groups cannot be divided among the ranks.
        """
        super().__init__()
        self._recurrence = create_recurrence(context.ops)
        self._group = context.groups.tensor
        self._total, self._epsilon, self._gates_first = part.total, epsilon, gates_first
        self._groups = groups // self._group.world_size  # 0 means that all ranks share the only group
        if self._groups * self._group.world_size != groups and groups > 1:
            raise ValueError(f"norms of {groups} groups cannot be divided among {self._group.world_size} ranks")
        self.weight = rows_parameter([part], (part.count,), context, dtype=context.dtype)

    def forward(self, hidden: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Norms gated values; `hidden`, `gates` and the result are [tokens, values of this rank]."""
        if self._groups:
            norm = GatedNorm(self.weight, self._groups, self._epsilon, self._gates_first)
            return self._recurrence.gated_norm(hidden, gates, norm)
        wide, opened = hidden.float(), F.silu(gates.float())
        if self._gates_first:
            wide = wide * opened
        square = self._group.all_reduce(wide.square().sum(-1, keepdim=True))
        normed = wide * (square / self._total + self._epsilon).rsqrt() * self.weight.float()
        return (normed if self._gates_first else normed * opened).to(hidden.dtype)


def _groups(group: ParallelGroup, config: Mamba2Config) -> Part:
    """The groups of this rank's heads: its own ones, or a single one that other ranks have too."""
    if config.groups % group.world_size == 0 or group.world_size % config.groups:
        return even_part(group, config.groups, config.state_size, "groups of a Mamba 2 layer")
    first = group.rank * config.groups // group.world_size
    return Part(first * config.state_size, config.state_size, config.groups * config.state_size)
