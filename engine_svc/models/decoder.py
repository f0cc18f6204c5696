"""The decoder that the Llama, Mistral and Qwen families share: what differs between them is in ModelConfig."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layers.context import LayerContext
from engine_svc.layers.embedding import VocabParallelEmbedding
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, qkv_parts
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.rotary import rotary_table
from engine_svc.models.config import ModelConfig
from engine_svc.models.mlp import MLP
from engine_svc.models.moe import SparseMLP
from engine_svc.ops.base import HeadNorms


@dataclass(frozen=True)
class StepInputs:
    """What the layers of one forward pass share."""

    rotary: torch.Tensor  # [tokens, 2, head_dim / 2]
    attention: AttentionBackend
    prepared: Any  # of the backend


class Attention(torch.nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, context: LayerContext, sliding_window: int | None) -> None:
        super().__init__()
        self._ops = context.ops
        parts = qkv_parts(context.group, config.num_heads, config.num_kv_heads, config.head_dim)
        self._heads = parts["q"][1] // config.head_dim
        self._kv_heads = parts["k"][1] // config.head_dim
        self._head_dim = config.head_dim
        self._window = sliding_window
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, bias=config.qkv_bias, context=context)
        self.o_proj = RowParallelLinear(
            config.num_heads * config.head_dim, config.hidden_size, bias=config.output_bias, context=context
        )
        self._norms: HeadNorms | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, context=context)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, context=context)
            self._norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, cache: Any, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        heads = self.qkv_proj(hidden).view(hidden.shape[0], -1, self._head_dim)
        query_key, value = heads.split((self._heads + self._kv_heads, self._kv_heads), dim=1)
        rotated = self._ops.rotate(query_key, step.rotary, self._heads, self._norms)
        query, key = rotated.split((self._heads, self._kv_heads), dim=1)
        output = step.attention.forward(
            query, key, value, cache, step.prepared, scale=self._head_dim**-0.5, sliding_window=self._window
        )
        return self.o_proj(output.reshape(hidden.shape[0], -1))


class DecoderLayer(torch.nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, context, config.sliding_windows[index])
        moe = config.moe[index]
        self.mlp = (
            SparseMLP(config, moe, context)
            if moe
            else MLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias, context=context)
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, context=context)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, context=context)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor, cache: Any, step: StepInputs) -> torch.Tensor:
        """Both [tokens, hidden_size]: what the layer before put out, and the sum of all before it, which is changed.

        Returns:
            This layer's output, not added to the residual yet: the next norm does both at once.
        """
        hidden = self.self_attn(self.input_layernorm(hidden, residual), cache, step)
        return self.mlp(self.post_attention_layernorm(hidden, residual))


class Decoder(torch.nn.Module):
    """Token ids to hidden states, and hidden states to logits."""

    def __init__(
        self, config: ModelConfig, context: LayerContext, attention: AttentionBackend, max_model_len: int
    ) -> None:
        super().__init__()
        self._attention = attention
        size, tied = (config.vocab_size, config.hidden_size), config.tie_word_embeddings
        self.embed_tokens = VocabParallelEmbedding(*size, context=context, is_output=tied)
        self.layers = torch.nn.ModuleList([DecoderLayer(config, context, index) for index in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, context=context)
        self.lm_head = self.embed_tokens if tied else VocabParallelEmbedding(*size, context=context, is_output=True)
        table = rotary_table(
            config.rope_parameters, config.head_dim, config.max_position_embeddings, max_model_len, context.dtype
        )
        self._rotary = table.to(context.device)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: Sequence[Any], prepared: Any
    ) -> torch.Tensor:
        """One forward pass over a flat batch.

        Args:
            token_ids, positions: int64 [tokens]
            caches: one for each layer.
            prepared: of the attention backend.

        Returns:
            Hidden states [tokens, hidden_size], normalised.
        """
        step = StepInputs(self._rotary[positions], self._attention, prepared)
        hidden = self.embed_tokens(token_ids)
        residual = torch.zeros_like(hidden)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, residual, cache, step)
        return self.norm(hidden, residual)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] → float32 [rows, vocab_size]."""
        return self.lm_head.logits(hidden)
