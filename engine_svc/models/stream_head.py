"""The layer of DeepSeek V4 that was trained to predict one token further: a draft head whose features are streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import whole_linear
from engine_svc.models.attention import AnyLayerCache
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder import Decoder
from engine_svc.models.decoder_layer import hidden_norm
from engine_svc.models.heads import FeatureHead, HeadForm
from engine_svc.models.streams import CollapsedNorm, StreamLayer
from quire.errors import StartupError


class StreamHead(FeatureHead):
    """Reads the streams after the target's last layer, and collapses its own for the target's output layer."""

    def __init__(
        self, form: HeadForm, context: LayerContext, attention: AttentionBackend, target: Decoder, longest: int
    ) -> None:
        super().__init__(form, context, attention, target, longest)
        self.feature_size = form.config.passed_size
        # Under its name in the checkpoint.
        self.mtp = torch.nn.ModuleList([_HeadLayer(form.config, context.at("mtp.0"), 0)])

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """See DraftModel.forward."""
        assert features is not None
        (layer,), (cache,) = self.mtp, caches
        hidden = layer.joined(self._embed(token_ids), features)
        found: torch.Tensor = layer(hidden, hidden, cache, self._step(positions)).hidden
        return found

    def _normalised(self, hidden: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.mtp[0].norm(hidden)
        return normalised


class _HeadLayer(StreamLayer):
    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        assert config.streams is not None
        size = config.hidden_size
        self.enorm, self.hnorm = hidden_norm(config, context), hidden_norm(config, context)
        self.e_proj = whole_linear(size, size, bias=False, context=context.at("e_proj"))
        self.h_proj = whole_linear(size, size, bias=False, context=context.at("h_proj"))
        self.norm = CollapsedNorm(size, config.streams, config.norm_eps, context=context)
        self._size = size

    def joined(self, embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Embeddings [tokens, hidden_size] and streams → streams, to each of which the embedding is added."""
        streams = self.h_proj(self.hnorm(features.reshape(-1, self._size)))
        token = self.e_proj(self.enorm(embedded))
        return (streams.view(len(token), -1, self._size) + token[:, None]).flatten(1)


def head_layer(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """The shape of the head's layer, from the target's configuration and its config.json.

    Raises:
        StartupError: the layer compresses what it attends to.
    """
    assert config.compression is not None
    rates = (raw.get("compress_ratios") or [])[config.num_layers :]
    if any(rates):
        raise StartupError(
            f"Multi-token prediction is not supported for a layer with entries of {max(rates)} tokens "
            "(compress_ratios in config.json). Leave --speculative-config out, or use ngram or suffix."
        )
    plain = next(moe for moe in config.moe if moe and not moe.table_tokens)
    return replace(
        config, num_layers=1, moe=(plain,), sliding_windows=config.sliding_windows[:1], ignored_names=(),
        compression=replace(config.compression, layers=(None,)), compressed_layers=frozenset(),
        rope_parameters=config.local_rope_parameters or config.rope_parameters,
    )  # fmt: skip
