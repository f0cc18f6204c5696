"""One layer of a decoder: attention and feed-forward around a residual, with norms where the family has them.

`hidden` is what the layer before put out, and `residual` the sum of all before it: adding the one to the other is left
to the norm that comes next, which does both at once.
"""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.norm import LayerNorm, RMSNorm
from engine_svc.models.attention import AnyLayerCache, Attention, StepInputs
from engine_svc.models.config import Mamba2Config, MambaConfig, ModelConfig, RecurrentConfig, ShortConvolutionConfig
from engine_svc.models.delta_net import DeltaNet, HeadwiseDeltaNet
from engine_svc.models.gated_attention import GatedAttention
from engine_svc.models.latent_attention import LatentAttention
from engine_svc.models.mamba import Mamba
from engine_svc.models.mamba2 import Mamba2
from engine_svc.models.mlp import MLP, PlainMLP
from engine_svc.models.moe import SparseMLP
from engine_svc.models.recurrent import RecurrentLayer
from engine_svc.models.short_convolution import ShortConvolution
from engine_svc.recurrence.base import StateShape


class DecoderLayer(torch.nn.Module):
    """Norms before attention and feed-forward."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__()
        self._ops = context.ops
        self.state_shape: StateShape | None = None  # of a recurrent layer
        if index in config.recurrent:
            self.mixer = _recurrent_layer(config.hidden_size, config.recurrent[index], context.at("mixer"))
            self.state_shape = self.mixer.state_shape
        else:
            self.self_attn = _attention(config, context.at("self_attn"), index)
        for name in self.norms:
            setattr(self, name, hidden_norm(config, context))
        if config.norm_placement == "alone":
            return
        self.mlp = _feed_forward(config, context.at("mlp"), index)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """Both [tokens, hidden_size]; the residual is changed. Returns what is to be added to it."""
        hidden = self._mix(self.input_layernorm(hidden, residual), cache, step)
        return self.mlp(self.post_attention_layernorm(hidden, residual))

    def _mix(self, hidden: torch.Tensor, cache: AnyLayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → the same, in which tokens have seen those before them."""
        mixer = self.self_attn if self.state_shape is None else self.mixer
        mixed: torch.Tensor = mixer(hidden, cache, step)
        return mixed


class MixerLayer(DecoderLayer):
    """No feed-forward layer (Mamba)."""

    norms = ("norm",)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward."""
        return self._mix(self.norm(hidden, residual), cache, step)


class ParallelLayer(DecoderLayer):
    """Attention and feed-forward side by side, of one norm (Cohere)."""

    norms = ("input_layernorm",)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward."""
        normed = self.input_layernorm(hidden, residual)
        return self._ops.add(self._mix(normed, cache, step), self.mlp(normed))


class ParallelNormsLayer(DecoderLayer):
    """The same, each of a norm of its own (Falcon 40B)."""

    norms = ("input_layernorm", "mlp_layernorm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward."""
        mixed = self._mix(self.input_layernorm(hidden, residual), cache, step)
        return self._ops.add(mixed, self.mlp(self.mlp_layernorm(residual)))


class PostNormLayer(DecoderLayer):
    """Norms behind attention and feed-forward (OLMo 2)."""

    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward."""
        self._ops.add(residual, hidden)
        self._ops.add(residual, self.post_attention_layernorm(self._mix(residual, cache, step)))
        return self.post_feedforward_layernorm(self.mlp(residual))


class SandwichNormLayer(DecoderLayer):
    """Norms before and behind (Gemma 2 and 3)."""

    norms = (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    )  # fmt: skip

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward."""
        hidden = self._mix(self.input_layernorm(hidden, residual), cache, step)
        hidden = self.pre_feedforward_layernorm(self.post_attention_layernorm(hidden), residual)
        return self.post_feedforward_layernorm(self.mlp(hidden))


class SumNormLayer(DecoderLayer):
    """Norms of the sums (BERT): what a layer puts out is all that there is, and the residual stays zero."""

    norms = ("attention_norm", "output_norm")

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward."""
        hidden = self.attention_norm(self._mix(hidden, cache, step), hidden)
        normed: torch.Tensor = self.output_norm(self.mlp(hidden), hidden)
        return normed


LAYERS: dict[str, type[DecoderLayer]] = {
    "before": DecoderLayer, "after": PostNormLayer, "around": SandwichNormLayer, "parallel": ParallelLayer,
    "parallel norms": ParallelNormsLayer, "alone": MixerLayer, "sums": SumNormLayer,
}  # fmt: skip


def _attention(config: ModelConfig, context: LayerContext, index: int) -> Attention | LatentAttention:
    if config.latent:
        return LatentAttention(config, config.latent, context)
    return (GatedAttention if config.gates_attention else Attention)(config, context, index)


def _feed_forward(config: ModelConfig, context: LayerContext, index: int) -> MLP | PlainMLP | SparseMLP:
    if moe := config.moe[index]:
        return SparseMLP(config, moe, context)
    size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    if not config.mlp_gated:
        return PlainMLP(size, inner, activation=config.activation, bias=bias, context=context)
    return MLP(
        size, inner, activation=config.activation, bias=bias, context=context, output_bias=config.mlp_output_bias,
        up_first=config.mlp_up_first,
    )  # fmt: skip


def _recurrent_layer(hidden_size: int, config: RecurrentConfig, context: LayerContext) -> RecurrentLayer:
    if isinstance(config, MambaConfig):
        return Mamba(hidden_size, config, context)
    if isinstance(config, Mamba2Config):
        return Mamba2(hidden_size, config, context)
    if isinstance(config, ShortConvolutionConfig):
        return ShortConvolution(hidden_size, config, context)
    return (HeadwiseDeltaNet if config.headwise else DeltaNet)(hidden_size, config, context)


def hidden_norm(config: ModelConfig, context: LayerContext) -> RMSNorm | LayerNorm:
    """A norm of hidden states, as the family has them."""
    size, epsilon, offset = config.hidden_size, config.norm_eps, config.norm_offset
    if config.norm == "layer":
        return LayerNorm(size, epsilon, context=context, offset=offset, bias=config.norm_bias)
    return RMSNorm(size, epsilon, context=context, offset=offset)
