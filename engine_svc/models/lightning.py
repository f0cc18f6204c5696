"""Lightning attention (Qin et al. 2024), as in MiniMax: linear attention that decays at a rate for each head."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.norm import ParallelRMSNorm
from engine_svc.layers.part import Layout
from engine_svc.models.attention import StepInputs
from engine_svc.models.recurrent import RecurrentLayer, even_part
from engine_svc.models.recurrent_config import LightningConfig
from engine_svc.recurrence.base import LayerState, ScanInputs, ScanParameters, StateShape
from engine_svc.recurrence.registry import create_recurrence

_NORM_EPSILON = 1e-6  # regardless of the configuration


class LightningAttention(RecurrentLayer):
    """See RecurrentLayer. Computed as Mamba 2's state space with time steps of 1, where keys write and queries read."""

    def __init__(self, hidden_size: int, config: LightningConfig, context: LayerContext) -> None:
        """
        Raises:
            ValueError: heads cannot be divided among the ranks.
        """
        super().__init__()
        self._ops, self._recurrence = context.ops, create_recurrence(context.ops)
        mine = even_part(context.groups.tensor, config.heads, config.head_dim, "heads of lightning attention")
        heads, size = mine.count // config.head_dim, config.heads * config.head_dim
        self.qkv_proj = ColumnParallelLinear(
            hidden_size, dict.fromkeys(("q", "k", "v"), mine), bias=False, context=context.at("qkv_proj"),
            layout=Layout(groups=config.heads),
        )  # fmt: skip
        self.output_gate = ColumnParallelLinear(hidden_size, {"": mine}, bias=False, context=context.at("output_gate"))
        self.norm = ParallelRMSNorm(mine, _NORM_EPSILON, context=context)
        self.o_proj = RowParallelLinear(size, hidden_size, bias=False, context=context.at("o_proj"))
        numbers = torch.arange(heads, device=context.device) + mine.first // config.head_dim + 1
        rates = -torch.exp2(-8 * numbers / config.heads) * config.pace
        self._scan = ScanParameters(rates, torch.zeros_like(rates), time_limits=(1.0, 1.0))
        self._heads, self._size = heads, mine.count
        self.state_shape = StateShape((0, 1), (heads, config.head_dim, config.head_dim))

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        query, key, value = self._ops.activate(self.qkv_proj(hidden), "silu").split(self._size, dim=-1)
        steps = value[:, : self._heads]  # arbitrary values: the time limits make them 1
        output = self._recurrence.scan_heads(ScanInputs(value, steps, key, query), self._scan, state)
        self.norm(output)
        return self.o_proj(self._ops.gate(output, self.output_gate(hidden)))
