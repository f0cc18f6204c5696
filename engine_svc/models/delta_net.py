"""The gated delta net (Yang, Kautz, Hatamizadeh 2024), as Qwen3-Next and Qwen3.5 have it."""

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
        self._ops, self._recurrence = context.ops, create_recurrence(context.ops)
        self._group, self._config, self._epsilon = context.groups.tensor, config, config.norm_epsilon
        values, keys = self._of_heads(self._served * config.value_dim), self._of_heads(config.key_dim)
        heads = self._of_heads(self._served)
        self._add_projections(hidden_size, context)
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

    @property
    def _served(self) -> int:
        """Value heads of each key head."""
        return self._config.value_heads // self._config.key_heads

    def _of_heads(self, size: int) -> Part:
        """So many rows of each key head."""
        return even_part(self._group, self._config.key_heads, size, "key heads of a delta net")

    def _add_projections(self, hidden_size: int, context: LayerContext) -> None:
        values, keys = self._of_heads(self._served * self._config.value_dim), self._of_heads(self._config.key_dim)
        parts: dict[str, dict[str, Part]] = {
            "in_proj_qkv": {"q": keys, "k": keys, "v": values}, "in_proj_z": {"": values},
            "in_proj_b": {"": self._of_heads(self._served)}, "in_proj_a": {"": self._of_heads(self._served)},
        }  # fmt: skip
        for name, part in parts.items():
            self.add_module(name, ColumnParallelLinear(hidden_size, part, bias=False, context=context.at(name)))

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What is convolved (queries, keys, values), gates, strengths and time steps, of each token."""
        return self.in_proj_qkv(hidden), self.in_proj_z(hidden), self.in_proj_b(hidden), self.in_proj_a(hidden)

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        mixed, gates, strengths, steps = self._project(hidden)
        mixed = self._recurrence.convolve(mixed, self.conv1d.filters(), state)
        query, key, value = mixed.split(self._convolved, dim=-1)
        inputs = DeltaInputs(query, key, value, steps, strengths)
        output = self._recurrence.delta_rule(inputs, DeltaParameters(self.A_log, self.dt_bias), state)
        norm = GatedNorm(self.norm.weight, len(self.A_log), self._epsilon, gates_first=False)
        return self.out_proj(self._recurrence.gated_norm(output, gates, norm))


class HeadwiseDeltaNet(DeltaNet):
    """One whose checkpoints have what goes with a key head side by side."""

    def _add_projections(self, hidden_size: int, context: LayerContext) -> None:
        config = self._config
        values = self._served * config.value_dim
        self._sizes = (config.key_dim, config.key_dim, values, values)
        for name, size in (("in_proj_qkvz", sum(self._sizes)), ("in_proj_ba", 2 * self._served)):
            parts = {"": self._of_heads(size)}
            self.add_module(name, ColumnParallelLinear(hidden_size, parts, bias=False, context=context.at(name)))

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See DeltaNet."""
        heads = self._of_heads(1).count
        *mixed, gates = self.in_proj_qkvz(hidden).view(len(hidden), heads, -1).split(self._sizes, dim=-1)
        strengths, steps = self.in_proj_ba(hidden).view(len(hidden), heads, -1).chunk(2, dim=-1)
        join = self._ops.join
        return join(mixed), join([gates]), join([strengths]), join([steps])
