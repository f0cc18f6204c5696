"""The gated delta net (Yang, Kautz, Hatamizadeh 2024), as Qwen3-Next has it."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.rows import rows_parameter
from engine_svc.layers.split import Part
from engine_svc.models.attention import StepInputs
from engine_svc.models.config import DeltaNetConfig
from engine_svc.models.recurrent import ChannelConvolution, RecurrentLayer, even_part, rates
from engine_svc.recurrence.base import DeltaInputs, DeltaParameters, GatedNorm, LayerState, StateShape
from engine_svc.recurrence.registry import create_recurrence


class DeltaNet(RecurrentLayer):
    """See RecurrentLayer. Every rank has some of the key heads, and the value heads that they serve."""

    def __init__(self, hidden_size: int, config: DeltaNetConfig, context: LayerContext) -> None:
        """
        Raises:
            ValueError: heads cannot be divided among the ranks.
        """
        super().__init__()
        self._recurrence = create_recurrence(context.ops)
        group, served = context.groups.tensor, config.value_heads // config.key_heads

        def of_heads(size: int) -> Part:
            return even_part(group, config.key_heads, size, "key heads of a delta net")

        values, heads, keys = of_heads(served * config.value_dim), of_heads(served), of_heads(config.key_dim)
        self._key_heads, self._epsilon = of_heads(1).count, config.norm_epsilon
        # A checkpoint has what goes with a key head side by side: query, key, values, gates.
        self._sizes = (config.key_dim, config.key_dim, served * config.value_dim, served * config.value_dim)
        self.in_proj_qkvz = ColumnParallelLinear(
            hidden_size, {"": of_heads(sum(self._sizes))}, bias=False, context=context.at("in_proj_qkvz")
        )
        self.in_proj_ba = ColumnParallelLinear(
            hidden_size, {"": of_heads(2 * served)}, bias=False, context=context.at("in_proj_ba")
        )
        self.conv1d = ChannelConvolution([keys, keys, values], config.taps, bias=False, context=context)
        self.A_log = rows_parameter([heads], (heads.count,), context, rates)
        self.dt_bias = rows_parameter([heads], (heads.count,), context)
        self.norm = torch.nn.Module()
        self.norm.weight = rows_parameter(
            [Part(0, config.value_dim, config.value_dim)], (values.count,), context,
            lambda weight: weight.repeat(heads.count), context.dtype,
        )  # fmt: skip
        self.out_proj = RowParallelLinear(
            config.value_heads * config.value_dim, hidden_size, bias=False, context=context.at("out_proj")
        )
        self._convolved = (keys.count, keys.count, values.count)
        self.state_shape = StateShape(
            (config.taps - 1, self.conv1d.channels), (heads.count, config.key_dim, config.value_dim)
        )

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        tokens = len(hidden)
        parts = self.in_proj_qkvz(hidden).view(tokens, self._key_heads, -1).split(self._sizes, dim=-1)
        mixed, gates = torch.cat([part.flatten(1) for part in parts[:3]], dim=-1), parts[3].flatten(1)
        scalars = self.in_proj_ba(hidden).view(tokens, self._key_heads, -1).chunk(2, dim=-1)
        strengths, steps = (part.flatten(1) for part in scalars)
        mixed = self._recurrence.convolve(mixed, self.conv1d.filters(), state)
        query, key, value = mixed.split(self._convolved, dim=-1)
        inputs = DeltaInputs(query, key, value, steps, strengths)
        parameters = DeltaParameters(self.A_log, self.dt_bias)
        output = self._recurrence.delta_rule(inputs, parameters, state)
        norm = GatedNorm(self.norm.weight, len(self.A_log), self._epsilon, gates_first=False)
        return self.out_proj(self._recurrence.gated_norm(output, gates, norm))
