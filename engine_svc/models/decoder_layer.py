"""One layer of a decoder: attention and feed-forward with a residual, and norms where the family has them.

`hidden` is the output of the previous layer, and `residual` the sum of all outputs before it. Adding the two is left to
the next norm, which does both in one kernel. A layer returns both, for the rows that are needed: see
StepInputs.output_rows.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.norm import DelayNorm, LayerNorm, RMSNorm
from engine_svc.models.attention import AnyLayerCache, Attention, BothCaches, CrossCache, LayerCache, StepInputs
from engine_svc.models.block_attention import BlockAttention
from engine_svc.models.compressed_attention import CompressedAttention
from engine_svc.models.config import ModelConfig
from engine_svc.models.cross_attention import CrossAttention
from engine_svc.models.expert_heads import ExpertHeadsAttention
from engine_svc.models.gated_attention import (
    GatedAttention,
    HeadGatedAttention,
    SoftplusGatedAttention,
    ValueGatedAttention,
)
from engine_svc.models.gated_latent_attention import QueryGatedLatentAttention
from engine_svc.models.gemma4_attention import Gemma4Attention
from engine_svc.models.latent_attention import LatentAttention
from engine_svc.models.latent_config import BlockIndexerConfig
from engine_svc.models.mlp import MLP, PlainMLP, SparseGateMLP, XieluMLP
from engine_svc.models.moe import SparseMLP
from engine_svc.models.narrow_values import NarrowValueAttention
from engine_svc.models.pruned_config import WHOLE
from engine_svc.models.recurrent_layers import recurrent_layer
from engine_svc.models.row_pass import RowPass
from engine_svc.ops.base import Ops
from engine_svc.recurrence.base import StateShape


class LayerOutput(NamedTuple):
    """The output of a layer; both tensors are [outputs, hidden_size]."""

    hidden: torch.Tensor  # not yet added to the residual
    residual: torch.Tensor


class DecoderLayer(torch.nn.Module):
    """A layer with norms before attention and before feed-forward."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    output_norms: tuple[str, ...] = ()  # those of what is added to the residual

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__()
        self._ops, self._multipliers = context.ops, config.multipliers
        self.state_shape: StateShape | None = None  # None means that the layer keeps no state
        is_alone, attends = config.norm_placement == "alone", config.attends(index)
        names = (config.recurrent_name, "mixer", "mixer") if is_alone else (config.recurrent_name, "self_attn", "mlp")
        self._recurrent_name, self._attention_name, feed_forward_name = names
        if index in config.recurrent:
            name = self._recurrent_name
            layer = recurrent_layer(config.hidden_size, config.recurrent[index], context.at(name))
            self.add_module(name, layer)
            self.state_shape = layer.state_shape
        if attends:
            self.add_module(self._attention_name, _attention(config, context.at(self._attention_name), index))
        for name in self.norms:
            factor = config.output_norm_factor if name in self.output_norms else 1.0
            setattr(self, name, hidden_norm(config, context, factor))
        if config.delay_tokens is not None:
            self.post_attention_layernorm = DelayNorm(
                config.hidden_size, config.norm_eps, config.delay_tokens, context=context
            )
        self._mixes = attends or self.state_shape is not None
        if not (is_alone and self._mixes) and config.pruned.get(index, WHOLE).feed_forward == "whole":
            self.add_module(feed_forward_name, _feed_forward(config, context.at(feed_forward_name), index))

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """Runs the layer; `hidden` and `residual` are [tokens, hidden_size], and `residual` is changed in place."""
        if self._row_pass is not None and len(hidden) <= self._row_pass.most_rows and step.output_rows is None:
            assert isinstance(cache, LayerCache)
            return LayerOutput(self._row_pass.forward(hidden, residual, cache, step), residual)
        hidden = self._mix(self.input_layernorm(hidden, residual), cache, step)
        residual = step.outputs(self._ops, residual)
        return LayerOutput(self.mlp(self.post_attention_layernorm(hidden, residual)), residual)

    @functools.cached_property
    def _row_pass(self) -> RowPass | None:
        """The fused pass for a few rows, or None; must not be read before the layer is packed."""
        norms = (self.input_layernorm, self.post_attention_layernorm)
        return None if self.state_shape else RowPass.of(getattr(self, self._attention_name), self.mlp, norms)

    def _mix(self, hidden: torch.Tensor, cache: AnyLayerCache, step: StepInputs) -> torch.Tensor:
        """Runs attention or the recurrent layer, in which tokens see earlier tokens.

        [tokens, hidden_size], which may be changed in place → [outputs, hidden_size].
        """
        if isinstance(cache, BothCaches):
            return self._mix_both(hidden, cache, step)
        if self.state_shape is not None:
            return self._keep(hidden, cache, step)
        attended: torch.Tensor = getattr(self, self._attention_name)(hidden, cache, step)
        return attended

    def _keep(self, hidden: torch.Tensor, state: AnyLayerCache, step: StepInputs) -> torch.Tensor:
        """Like `_mix`, for the recurrent layer, whose state takes in all tokens."""
        return step.outputs(self._ops, getattr(self, self._recurrent_name)(hidden, state, step))

    def _mix_both(self, hidden: torch.Tensor, cache: BothCaches, step: StepInputs) -> torch.Tensor:
        """The sum of a recurrent layer's and attention's outputs for the same normed input."""
        assert self._multipliers is not None
        (kept_in, kept_out), (attended_in, attended_out) = self._multipliers.recurrent, self._multipliers.attention
        kept = self._keep(_times(self._ops, hidden, kept_in), cache.state, step)
        hidden = _times(self._ops, hidden, attended_in / kept_in)
        attended = getattr(self, self._attention_name)(hidden, cache.attended, step)
        return self._ops.add(_times(self._ops, kept, kept_out), _times(self._ops, attended, attended_out))


class MixerLayer(DecoderLayer):
    """A layer that is only one of attention, a recurrent layer (Mamba) or feed-forward (Nemotron H)."""

    norms = ("norm",)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        hidden = self.norm(hidden, residual)
        residual = step.outputs(self._ops, residual)
        if self._mixes:
            return LayerOutput(self._mix(hidden, cache, step), residual)
        return LayerOutput(self.mixer(step.outputs(self._ops, hidden)), residual)


class ParallelLayer(DecoderLayer):
    """Attention and feed-forward in parallel, after one common norm (Cohere)."""

    norms = ("input_layernorm",)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        normed = self.input_layernorm(hidden, residual)
        fed = self.mlp(step.outputs(self._ops, normed))
        return LayerOutput(self._ops.add(self._mix(normed, cache, step), fed), step.outputs(self._ops, residual))


class ParallelNormsLayer(DecoderLayer):
    """Attention and feed-forward in parallel, each after its own norm (Falcon 40B)."""

    norms = ("input_layernorm", "mlp_layernorm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        mixed = self._mix(self.input_layernorm(hidden, residual), cache, step)
        residual = step.outputs(self._ops, residual)
        return LayerOutput(self._ops.add(mixed, self.mlp(self.mlp_layernorm(residual))), residual)


class PostNormLayer(DecoderLayer):
    """Norms after attention and after feed-forward (OLMo 2)."""

    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        self._ops.add(residual, hidden)
        mixed = self._mix(residual, cache, step)
        residual = self._ops.add(step.outputs(self._ops, residual), self.post_attention_layernorm(mixed))
        return LayerOutput(self.post_feedforward_layernorm(self.mlp(residual)), residual)


class SandwichNormLayer(DecoderLayer):
    """Norms before and after attention and feed-forward (Gemma 2 and 3)."""

    norms = (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    )  # fmt: skip
    output_norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        hidden = self._mix(self.input_layernorm(hidden, residual), cache, step)
        residual = step.outputs(self._ops, residual)
        hidden = self.pre_feedforward_layernorm(self.post_attention_layernorm(hidden), residual)
        return LayerOutput(self.post_feedforward_layernorm(self.mlp(hidden)), residual)


class SumNormLayer(DecoderLayer):
    """Norms of the sums (BERT): a layer's output includes the residual connection, and `residual` stays zero."""

    norms = ("attention_norm", "output_norm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        mixed, hidden = self._mix(hidden, cache, step), step.outputs(self._ops, hidden)
        hidden = self.attention_norm(mixed, hidden)
        return LayerOutput(self.output_norm(self.mlp(hidden), hidden), step.outputs(self._ops, residual))


class ResidualNormLayer(DecoderLayer):
    """Residual connections from the norms' outputs (MiniMax): layer outputs include them, and `residual` stays zero."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        assert config.balance is not None
        self._balances = (
            config.balance.recurrent if index in config.recurrent else config.balance.attention, config.balance.mlp,
        )  # fmt: skip

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        normed = self.input_layernorm(hidden)
        mixed = self._mix(normed, cache, step)
        hidden = self._sum(step.outputs(self._ops, normed), mixed, self._balances[0])
        normed = self.post_attention_layernorm(hidden)
        return LayerOutput(self._sum(normed, self.mlp(normed), self._balances[1]), step.outputs(self._ops, residual))

    def _sum(self, normed: torch.Tensor, added: torch.Tensor, balance: tuple[float, float]) -> torch.Tensor:
        """The weighted sum; both tensors may be changed in place."""
        return self._ops.add(_times(self._ops, normed, balance[0]), _times(self._ops, added, balance[1]))


class CrossLayer(DecoderLayer):
    """Attention to text, then attention to an encoder's output, then feed-forward, each after a norm (Whisper)."""

    norms = ("input_layernorm", "cross_layernorm", "post_attention_layernorm")

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        self.cross_attn = CrossAttention(config, context.at("cross_attn"))

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward; all rows are text, and all are needed."""
        assert isinstance(cache, CrossCache)
        if not len(hidden):  # a part of the encoder's output, and no text yet
            return LayerOutput(self.cross_attn(hidden, cache, step), residual)
        hidden = self._mix(self.input_layernorm(hidden, residual), cache.text, step)
        hidden = self.cross_attn(self.cross_layernorm(hidden, residual), cache, step)
        return LayerOutput(self.mlp(self.post_attention_layernorm(hidden, residual)), residual)


def _times(ops: Ops, hidden: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplies in place."""
    return hidden if factor == 1 else ops.scale(hidden, factor)


_ATTENTION: dict[str, type[Attention]] = {
    "none": Attention, "queries": GatedAttention, "values": ValueGatedAttention,
    "values, head biases": ValueGatedAttention, "heads": HeadGatedAttention,
    "values, softplus": SoftplusGatedAttention, "heads, softplus": SoftplusGatedAttention,
}  # fmt: skip


def _attention(
    config: ModelConfig, context: LayerContext, index: int
) -> Attention | LatentAttention | CompressedAttention:
    if config.compression:
        return CompressedAttention(config, config.compression, context, index)
    if config.latent:
        kind = QueryGatedLatentAttention if config.attention_gates == "queries" else LatentAttention
        return kind(config, config.latent, context, index)
    if isinstance(config.indexer, BlockIndexerConfig) and index not in config.indexer.whole_layers:
        return BlockAttention(config, config.indexer, context, index)
    if config.query_experts:
        return ExpertHeadsAttention(config, context, index)
    if config.value_norm:
        return Gemma4Attention(config, context, index)
    if config.value_dim:
        return NarrowValueAttention(config, context, index)
    return _ATTENTION[config.attention_gates](config, context, index)


def _feed_forward(config: ModelConfig, context: LayerContext, index: int) -> MLP | PlainMLP | XieluMLP | SparseMLP:
    if (moe := config.moe[index]) and not moe.beside_dense:
        return SparseMLP(config, moe, context)
    size, bias = config.hidden_size, config.mlp_bias
    inner = config.own_sizes.get(index, config.intermediate_size)
    if config.activation == "xielu":
        return XieluMLP(size, inner, bias=bias, context=context)
    if not config.mlp_gated and not config.mlp_has_up:
        return PlainMLP(size, inner, activation=config.activation, bias=bias, context=context)
    if (cutoff := config.gate_cutoffs.get(index)) is not None:
        return SparseGateMLP(size, inner, cutoff=cutoff, activation=config.activation, context=context)
    return MLP(
        size, inner, activation=config.activation, bias=bias, context=context, output_bias=config.mlp_output_bias,
        up_first=config.mlp_up_first, is_gated=config.mlp_gated,
        multipliers=config.multipliers.mlp if config.multipliers else (1.0, 1.0),
    )  # fmt: skip


def hidden_norm(config: ModelConfig, context: LayerContext, factor: float = 1.0) -> RMSNorm | LayerNorm:
    """Creates a norm of hidden states, of the family's kind.

    Args:
        factor: on the checkpoint's weights, of RMS norms only.
    """
    size, epsilon, offset = config.hidden_size, config.norm_eps, config.norm_offset
    if config.norm == "layer":
        return LayerNorm(
            size, epsilon, context=context, offset=offset, bias=config.norm_bias, has_weight=config.norm_weight
        )
    norm = RMSNorm(size, epsilon, context=context, offset=offset, factor=factor)
    norm.weight.default = None if config.norm_weight else 1.0
    return norm
