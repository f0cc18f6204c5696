"""The encoder shared by all families; the differences between them are in EncoderConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine_svc.attention.base import AttentionBackend, CacheScales
from engine_svc.layers.context import LayerContext
from engine_svc.layers.embedding import VocabParallelEmbedding
from engine_svc.layers.norm import NoNorm
from engine_svc.layers.rotary import rotary_table
from engine_svc.layers.row_table import RowTable
from engine_svc.models.attention import AnyLayerCache, StepInputs
from engine_svc.models.decoder_layer import hidden_norm
from engine_svc.models.encoder_config import EncoderConfig
from engine_svc.models.layer_kinds import LAYERS
from engine_svc.models.positions import position_table


class Encoder(torch.nn.Module):
    """Turns token ids into hidden states, each of which has seen its whole sequence."""

    is_tied = True  # see Decoder.is_tied

    def __init__(
        self, config: EncoderConfig, context: LayerContext, attention: AttentionBackend, max_model_len: int
    ) -> None:
        super().__init__()
        self.config, self.quantization = config, context.quantization
        self._attention, self._ops = attention, context.ops
        size = config.hidden_size
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, size, context=context.at("embed_tokens"))
        self.positions = position_table(config, context)
        self.types = RowTable(config.type_vocab_size, size, context=context) if config.type_vocab_size else None
        self.embedding_norm = hidden_norm(config, context)
        layer = LAYERS[config.norm_placement]
        self.layers = torch.nn.ModuleList(
            [layer(config, context.at(f"layers.{index}"), index) for index in range(config.num_layers)]
        )
        if not config.norms_first_layer:
            self.layers[0].input_layernorm = NoNorm(context.ops)
        self.norm = hidden_norm(config, context) if config.has_norm else None

        def table(parameters: Mapping[str, Any] | None) -> torch.Tensor | None:
            if not parameters:
                return None
            longest = config.max_position_embeddings
            found = rotary_table(parameters, config.rotary_dim, longest, max_model_len, context.dtype)
            return found.to(context.device)

        self._rotary = table(config.rope_parameters)
        self._local_rotary = table(config.local_rope_parameters)

    def use_cache_scales(self, scales: Mapping[int, CacheScales]) -> None:
        """Does nothing: an encoder has no KV cache."""

    def is_elsewhere(self, parameter: str) -> bool:
        """See Decoder.is_elsewhere; encoders are never split into stages."""
        return False

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        types: torch.Tensor,
    ) -> torch.Tensor:
        """One forward pass over a flat batch of whole sequences.

        Args:
            token_ids, positions, types: int64 [tokens]
            caches: one for each layer.

        Returns:
            Hidden states [tokens, hidden_size].
        """
        hidden = self._embed(token_ids, positions, types)
        residual = self._ops.zeros_like(hidden)
        step = self._step(positions, hidden)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden, residual = layer(hidden, residual, cache, step)
        return hidden if self.norm is None else self.norm(hidden, residual)

    def _embed(self, token_ids: torch.Tensor, positions: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed_tokens(token_ids)
        if self.positions is not None:
            hidden = self._ops.add(hidden, self.positions(positions))
        if self.types is not None:
            hidden = self._ops.add(hidden, self.types(types))
        normed: torch.Tensor = self.embedding_norm(hidden)
        return normed

    def _step(self, positions: torch.Tensor, hidden: torch.Tensor) -> StepInputs:
        nothing = hidden.new_empty((len(hidden), 2, 0))
        rotary = nothing if self._rotary is None else self._ops.take_rows(self._rotary, positions)
        local = rotary if self._local_rotary is None else self._ops.take_rows(self._local_rotary, positions)
        return StepInputs(rotary, local, self._attention)
