"""Manifold-constrained hyper-connections (Xie et al. 2026, as in DeepSeek V4): hidden states that are several streams.

Before each part of a layer, the streams are collapsed to the part's input; after it, they are mixed with each other and
the part's output is added to each. All three sets of weights depend on the token. The mixing matrix is made doubly
stochastic by Sinkhorn and Knopp's iteration, so that streams neither grow nor vanish over many layers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.models.attention import AnyLayerCache, StepInputs
from engine_svc.models.compression_config import StreamsConfig
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import DecoderLayer, LayerOutput
from engine_svc.models.moe import SparseMLP


class Mixing(NamedTuple):
    """A token's weights for what follows a part of a layer."""

    added: torch.Tensor  # float32 [tokens, count], of the part's output in each stream
    # float32 [tokens, count, count], of each stream (first) in each new one (second); None means it stays what it is.
    kept: torch.Tensor | None


class StreamLayer(DecoderLayer):
    """Attention and feed-forward, each after a norm; `hidden` is [tokens, count * hidden_size], `residual` zero."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        assert config.streams is not None
        connection = HyperConnection if config.streams.magnitude is None else IndependentConnection
        self.attn_hc = connection(config.hidden_size, config.streams, config.norm_eps, context)
        self.ffn_hc = connection(config.hidden_size, config.streams, config.norm_eps, context)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward; all rows are needed."""
        collapsed, mixing = self.attn_hc(hidden)
        hidden = mixed(hidden, self._mix(self.input_layernorm(collapsed), cache, step), mixing)
        collapsed, mixing = self.ffn_hc(hidden)
        normed = self.post_attention_layernorm(collapsed)
        fed = self.mlp(normed, token_ids=step.token_ids) if isinstance(self.mlp, SparseMLP) else self.mlp(normed)
        return LayerOutput(mixed(hidden, fed, mixing), residual)


class _Connection(PackedLayer):
    """Projects streams to scores."""

    def __init__(
        self, hidden_size: int, streams: StreamsConfig, norm_epsilon: float, context: LayerContext,
        sizes: tuple[int, ...],
    ) -> None:  # fmt: skip
        """
        Args:
            sizes: numbers of the scores of each kind.
        """
        super().__init__()
        self._ops, self._streams, self._norm_epsilon, self._sizes = context.ops, streams, norm_epsilon, sizes
        self.fn = LoadedParameter((sum(sizes), streams.count * hidden_size), torch.float32, context.device)
        self.base = LoadedParameter((sum(sizes),), torch.float32, context.device)
        self.scale = LoadedParameter((len(sizes),), torch.float32, context.device)

    def pack(self) -> None:
        """See PackedLayer.pack."""
        for rows, scale in zip(self.fn.data.split(self._sizes), self.scale, strict=True):
            rows.mul_(scale)
        del self.scale

    def _scores(self, streams: torch.Tensor) -> torch.Tensor:
        return F.linear(_normed(streams, self._norm_epsilon), self.fn, self.base)


class HyperConnection(_Connection):
    """Collapses streams before a part of a layer, and says how they are mixed after it."""

    def __init__(self, hidden_size: int, streams: StreamsConfig, norm_epsilon: float, context: LayerContext) -> None:
        sizes = streams.count, streams.count, streams.count * streams.count
        super().__init__(hidden_size, streams, norm_epsilon, context, sizes)

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, Mixing]:
        """[tokens, count * hidden_size] → the part's input [tokens, hidden_size], and weights for `mixed`."""
        form = self._streams
        found = self._ops.stream_weights(self._scores(streams), form.count, form.iterations, form.epsilon)
        before, added, kept = found.split(self._sizes, dim=1)
        return collapsed(streams, before), Mixing(added, kept.unflatten(1, (form.count, -1)))


class IndependentConnection(_Connection):
    """Like HyperConnection, but streams are not mixed with each other (Hunyuan 4)."""

    def __init__(self, hidden_size: int, streams: StreamsConfig, norm_epsilon: float, context: LayerContext) -> None:
        super().__init__(hidden_size, streams, norm_epsilon, context, (streams.count, streams.count))

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, Mixing]:
        """See HyperConnection.forward."""
        form = self._streams
        before, added = self._scores(streams).sigmoid_().split(self._sizes, dim=1)
        return collapsed(streams, before + form.epsilon), Mixing(added * form.magnitude + form.epsilon, None)


class CollapsedNorm(RMSNorm):
    """The norm after the last layer, of the weighted sum of all streams."""

    def __init__(self, hidden_size: int, streams: StreamsConfig, epsilon: float, *, context: LayerContext) -> None:
        super().__init__(hidden_size, epsilon, context=context)
        self._stream_epsilon, count = streams.epsilon, streams.count
        self.fn = LoadedParameter((count, count * hidden_size), torch.float32, context.device)
        self.base = LoadedParameter((count,), torch.float32, context.device)
        self.scale = LoadedParameter((1,), torch.float32, context.device)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None = None, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[tokens, count * hidden_size] → [tokens, hidden_size]; see RMSNorm.forward. `residual` must be zero."""
        weights = (F.linear(_normed(hidden, self.epsilon), self.fn) * self.scale + self.base).sigmoid()
        return super().forward(collapsed(hidden, weights + self._stream_epsilon), None, output)


def as_streams(hidden: torch.Tensor, count: int) -> torch.Tensor:
    """Embeddings [tokens, hidden_size] as the first layer's streams, which are all equal."""
    return hidden.repeat(1, count)


def collapsed(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of streams [tokens, count * hidden_size]: [tokens, hidden_size]."""
    apart = streams.unflatten(1, (weights.shape[1], -1))
    return (weights[:, :, None] * apart).sum(dim=1).to(streams.dtype)


def mixed(streams: torch.Tensor, output: torch.Tensor, mixing: Mixing) -> torch.Tensor:
    """The streams after a part of a layer.

    Args:
        output: [tokens, hidden_size], the part's.
    """
    apart = streams.unflatten(1, (mixing.added.shape[1], -1)).to(mixing.added.dtype)
    added = mixing.added[:, :, None] * output[:, None]
    sums = added + apart if mixing.kept is None else torch.baddbmm(added, mixing.kept.transpose(1, 2), apart)
    return sums.to(streams.dtype).flatten(1)


def _normed(streams: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = streams.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
