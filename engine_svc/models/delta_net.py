"""The gated delta net (Yang, Kautz, Hatamizadeh 2024) of Qwen3-Next, Qwen3.5 and OLMo Hybrid, and Kimi's variant."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.rows import rows_parameter
from engine_svc.layers.split import Part
from engine_svc.models.attention import StepInputs
from engine_svc.models.recurrent import ChannelConvolution, RecurrentLayer, even_part, rates
from engine_svc.models.recurrent_config import DeltaNetConfig
from engine_svc.recurrence.base import DeltaInputs, DeltaParameters, GatedNorm, LayerState, StateShape
from engine_svc.recurrence.registry import create_recurrence

_LEAST_SHARE = 1e-30  # of a bounded decay, of which there is a logarithm


class DeltaNet(RecurrentLayer):
    """See RecurrentLayer. Every rank has some of the key heads, and the value heads that they serve."""

    # Projections to the inputs of the convolution (queries, keys, values), gates, strengths and time steps.
    _projections = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    _norm_name, _output_name = "norm", "out_proj"
    _gate: Literal["silu", "sigmoid"] = "silu"

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
        channels = {"q": keys, "k": keys, "v": values}
        self.conv1d = ChannelConvolution(channels, config.taps, bias=False, context=context)
        steps = self._of_heads(self._served * self._steps)
        self.A_log = rows_parameter([heads], (heads.count,), context, rates, is_flat=True)
        self.dt_bias = rows_parameter([steps], (steps.count,), context)
        self.add_module(self._norm_name, norm := torch.nn.Module())
        norm.weight = rows_parameter(
            [Part(0, config.value_dim, config.value_dim)], (values.count,), context,
            lambda weight: weight.repeat(heads.count), context.dtype,
        )  # fmt: skip
        size, name = config.value_heads * config.value_dim, self._output_name
        self.add_module(name, RowParallelLinear(size, hidden_size, bias=False, context=context.at(name)))
        self._convolved = (keys.count, keys.count, values.count)
        self.state_shape = StateShape(
            (config.taps - 1, self.conv1d.channels), (heads.count, config.key_dim, config.value_dim)
        )

    @property
    def _steps(self) -> int:
        """Number of time steps of each value head."""
        return 1

    @property
    def _served(self) -> int:
        """Number of value heads that each key head serves."""
        return self._config.value_heads // self._config.key_heads

    def _of_heads(self, size: int) -> Part:
        """This rank's rows, if each key head has `size` of them."""
        return even_part(self._group, self._config.key_heads, size, "key heads of a delta net")

    def _add_projections(self, hidden_size: int, context: LayerContext) -> None:
        values, keys = self._of_heads(self._served * self._config.value_dim), self._of_heads(self._config.key_dim)
        convolved, gates, *of_heads = self._projections
        self._add(hidden_size, convolved, {"q": keys, "k": keys, "v": values}, context)
        self._add(hidden_size, gates, {"": values}, context)
        for name in of_heads:
            self._add(hidden_size, name, {"": self._of_heads(self._served)}, context)

    def _add(self, inputs: int, name: str, parts: Mapping[str, Part], context: LayerContext) -> None:
        self.add_module(name, ColumnParallelLinear(inputs, parts, bias=False, context=context.at(name)))

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Each token's inputs of the convolution (queries, keys, values), gates, strengths and time steps."""
        convolved, gates, strengths, steps = (getattr(self, name)(hidden) for name in self._projections)
        return convolved, gates, strengths, steps

    @functools.cached_property
    def _rule(self) -> DeltaParameters:
        """Must not be read before the layer is loaded."""
        return DeltaParameters(self.A_log, self.dt_bias, self._config.strongest)

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        mixed, gates, strengths, steps = self._project(hidden)
        mixed = self._recurrence.convolve(mixed, self.conv1d.filters(), state)
        query, key, value = mixed.split(self._convolved, dim=-1)
        inputs = DeltaInputs(query, key, value, steps, strengths)
        output = self._recurrence.delta_rule(inputs, self._rule, state)
        weight = getattr(self, self._norm_name).weight
        norm = GatedNorm(weight, len(self.A_log), self._epsilon, gates_first=False, gate=self._gate)
        projected: torch.Tensor = getattr(self, self._output_name)(self._recurrence.gated_norm(output, gates, norm))
        return projected


class HeadwiseDeltaNet(DeltaNet):
    """A delta net whose checkpoints keep everything that belongs to a key head side by side."""

    def _add_projections(self, hidden_size: int, context: LayerContext) -> None:
        config = self._config
        values = self._served * config.value_dim
        self._sizes = (config.key_dim, config.key_dim, values, values)
        for name, size in (("in_proj_qkvz", sum(self._sizes)), ("in_proj_ba", 2 * self._served)):
            self._add(hidden_size, name, {"": self._of_heads(size)}, context)

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See DeltaNet."""
        heads = self._of_heads(1).count
        *mixed, gates = self.in_proj_qkvz(hidden).view(len(hidden), heads, -1).split(self._sizes, dim=-1)
        strengths, steps = self.in_proj_ba(hidden).view(len(hidden), heads, -1).chunk(2, dim=-1)
        join = self._ops.join
        return join(mixed), join([gates]), join([strengths]), join([steps])


class ApartDeltaNet(DeltaNet):
    """A delta net whose checkpoints have separate tensors for queries, keys and values (OLMo Hybrid)."""

    _projections = ("qkv_proj", "g_proj", "b_proj", "a_proj")
    _norm_name, _output_name = "o_norm", "o_proj"


class KimiDeltaNet(ApartDeltaNet):
    """A delta net whose states decay at a rate for each value of a key (Kimi Team 2025); gates go through a sigmoid."""

    _gate = "sigmoid"

    @property
    def _steps(self) -> int:
        """See DeltaNet."""
        return self._config.key_dim

    def _add_projections(self, hidden_size: int, context: LayerContext) -> None:
        size = self._config.key_dim  # of keys and values, which have the same number of heads
        inner, whole = self._of_heads(size), {"": Part(0, size, size)}
        self._add(hidden_size, "qkv_proj", dict.fromkeys(("q", "k", "v"), inner), context)
        self._add(hidden_size, "b_proj", {"": self._of_heads(1)}, context)
        for name in ("f", "g"):  # time steps and gates
            self._add(hidden_size, f"{name}_a_proj", whole, context)
            self._add(size, f"{name}_b_proj", {"": inner}, context)

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See DeltaNet."""
        gates, steps = self.g_b_proj(self.g_a_proj(hidden)), self.f_b_proj(self.f_a_proj(hidden))
        return self.qkv_proj(hidden), gates, self.b_proj(hidden), steps


class BoundedDeltaNet(KimiDeltaNet):
    """Kimi's delta net with whole projections, and decays of exp(bound * sigmoid(time step * -rate)) (Ling 3.0)."""

    def _add_projections(self, hidden_size: int, context: LayerContext) -> None:
        inner = self._of_heads(self._config.key_dim)
        self._add(hidden_size, "qkv_proj", dict.fromkeys(("q", "k", "v"), inner), context)
        self._add(hidden_size, "b_proj", {"": self._of_heads(1)}, context)
        for name in ("f_proj", "g_proj"):  # time steps and gates
            self._add(hidden_size, name, {"": inner}, context)

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See DeltaNet. Time steps become such that the delta rule's softplus makes the sigmoid of them."""
        steps = (self.f_proj(hidden).float() + self.dt_bias).unflatten(1, (len(self.A_log), -1))
        shares = (steps * -self.A_log[:, None]).sigmoid().clamp(min=_LEAST_SHARE)
        bounded = shares.expm1().log().to(hidden.dtype).flatten(1)
        return self.qkv_proj(hidden), self.g_proj(hidden), self.b_proj(hidden), bounded

    @functools.cached_property
    def _rule(self) -> DeltaParameters:
        """See DeltaNet."""
        rates = torch.full_like(self.A_log, self._config.lower_bound)
        return DeltaParameters(rates, torch.zeros_like(self.dt_bias), self._config.strongest)


DELTA_NETS: dict[str, type[DeltaNet]] = {
    "joined": DeltaNet, "headwise": HeadwiseDeltaNet, "apart": ApartDeltaNet, "kimi": KimiDeltaNet,
    "bounded": BoundedDeltaNet,
}  # fmt: skip
