"""Compressed attention (multi-head latent attention of DeepSeek V2), computed with a single key-value head.

The plain key of a head is the cached vector times one of the head's matrices, and its value is the vector times
another. Instead of computing keys and values of all heads, the first matrix is applied to the query and the second to
the output of attention. All heads then attend to the same keys: the vector and the rotated part of the key, which are
all that is cached.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from engine_svc.attention.base import AttentionBackend, AttentionOptions
from engine_svc.attention.chosen import Choosing, ChosenAttention
from engine_svc.layers.context import HeadAdapters, LayerContext, PackedLayer
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, even_parts
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.split import Part, Split, hold
from engine_svc.models.attention import LayerCache, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.models.indexer import Indexer
from engine_svc.models.latent_config import IndexerConfig, LatentConfig
from engine_svc.models.sinks import head_sinks
from engine_svc.ops.base import HeadsProduct
from engine_svc.ops.weights import wide

_NORM_EPSILON = 1e-6  # of the norms inside, regardless of the configuration


class Projected(NamedTuple):
    """What attention computes of the hidden states of outputs, apart from keys."""

    query_vectors: torch.Tensor  # [outputs, query_rank], which queries are derived from; hidden states if none are
    queries: torch.Tensor  # [outputs, heads, plain_dim + rotated_dim], contiguous
    gates: torch.Tensor | None  # [outputs, heads * value_dim], or float32 [outputs, heads]


class LatentAttention(torch.nn.Module):
    """Compressed attention, with the same interface as Attention."""

    def __init__(self, config: ModelConfig, latent: LatentConfig, context: LayerContext, index: int) -> None:
        super().__init__()
        self._ops = context.ops
        self.indexer: Indexer | None = None
        self._chosen = context.chosen if isinstance(context.chosen, ChosenAttention) else None
        if isinstance(form := config.indexer, IndexerConfig) and self._chosen and index not in form.shared_layers:
            self.indexer = Indexer(config.hidden_size, latent, form, self._chosen, context.at("indexer"))
        self._latent = latent
        self._heads = context.groups.tensor.divide(config.num_heads, "attention heads")
        self._neighbors: dict[int, HeadsProduct] = {}  # by number of heads; empty if values to rotate are neighbors
        if not config.rope_interleaved:
            matrix = _pairing(latent.rotated_dim).to(context.device, context.dtype)
            self._neighbors = {
                heads: context.ops.head_matrices(matrix.expand(heads, -1, -1)) for heads in (1, self._heads)
            }
        first = context.groups.tensor.rank * self._heads
        self.sinks = head_sinks(first, self._heads, context) if config.attention_sinks == "all" else None
        self.options = AttentionOptions(config.attention_scale, sinks=self.sinks)
        size = latent.plain_dim + latent.rotated_dim
        queries = Part(first * size, self._heads * size, config.num_heads * size)

        def whole(rows: int) -> dict[str, Part]:
            return {"": Part(0, rows, rows)}

        if latent.query_rank is None:
            # parameter_name maps a checkpoint's q_proj to this name.
            self.qkv_proj = ColumnParallelLinear(
                config.hidden_size, {"q": queries}, bias=False, context=context.at("qkv_proj")
            )
        else:
            self.q_a_proj = ColumnParallelLinear(
                config.hidden_size, whole(latent.query_rank), bias=config.qkv_bias, context=context.at("q_a_proj")
            )
            self.q_a_layernorm = RMSNorm(latent.query_rank, _NORM_EPSILON, context=context)
            self.q_b_proj = ColumnParallelLinear(
                latent.query_rank, {"": queries}, bias=False, context=context.at("q_b_proj")
            )
        self.kv_a_proj_with_mqa = ColumnParallelLinear(
            config.hidden_size,
            whole(latent.rank + latent.rotated_dim),
            bias=config.qkv_bias,
            context=context.at("kv_a_proj_with_mqa"),
        )
        self.kv_a_layernorm = RMSNorm(latent.rank, _NORM_EPSILON, context=context, factor=latent.vector_scale)
        self.kv_b_proj = HeadMatrices(self._heads, first, config.num_heads, latent, context.at("kv_b_proj"))
        self.o_proj = RowParallelLinear(
            config.num_heads * latent.value_dim,
            config.hidden_size,
            bias=config.output_bias,
            context=context.at("o_proj"),
        )
        self.g_proj: ColumnParallelLinear | None = None
        self._gates_heads = config.attention_gates == "heads"
        if config.attention_gates in ("values", "heads"):
            each = 1 if self._gates_heads else latent.value_dim
            gates = even_parts(context.groups.tensor, {"": config.num_heads * each})
            self.g_proj = ColumnParallelLinear(config.hidden_size, gates, bias=False, context=context.at("g_proj"))

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [outputs, hidden_size]; see StepInputs.output_rows."""
        latent, ops = self._latent, self._ops
        query_vectors, queries, gates = self._projected(step.outputs(ops, hidden))
        if step.query_scales is not None:  # may come before the rotation
            ops.scale_rows(queries.flatten(1), step.outputs(ops, step.query_scales))
        vectors = self.kv_a_proj_with_mqa(hidden)
        key = hidden.new_empty((len(hidden), 1, latent.rank + latent.rotated_dim))
        self.kv_a_layernorm(vectors[:, : latent.rank], output=key[:, 0, : latent.rank])
        self._rotate(vectors[:, None, latent.rank :], step.rotary, key[..., latent.rank :])
        rotary = step.outputs(ops, step.rotary)
        if self.indexer is not None:
            step.choice.positions = self.indexer(hidden, query_vectors, cache, step)
        if cache.choosing is None:
            values = self._attend(queries, rotary, key, cache, step.attention)
        else:
            values = self._attend_chosen(queries, rotary, key, cache, cache.choosing, step)
        return self.o_proj(self._gated(values, gates))

    def _projected(self, hidden: torch.Tensor) -> Projected:
        """What is computed of hidden states [outputs, hidden_size]."""
        if self._latent.query_rank is None:
            vectors, queries = hidden, self.qkv_proj(hidden)
        else:
            vectors = self.q_a_layernorm(self.q_a_proj(hidden))
            queries = self.q_b_proj(vectors)
        gates = None if self.g_proj is None else self.g_proj(hidden, wide=self._gates_heads)
        return Projected(vectors, queries.unflatten(1, (self._heads, -1)), gates)

    def _gated(self, values: torch.Tensor, gates: torch.Tensor | None) -> torch.Tensor:
        """[outputs, heads, value_dim] → [outputs, heads * value_dim], multiplied by the layer's gates if it has any."""
        if gates is None:
            return values.flatten(1)
        if not self._gates_heads:
            return self._ops.gate(values.flatten(1), gates)
        gated = self._ops.zeros_like(values)
        self._ops.add(gated.flatten(0, 1), values.flatten(0, 1), gates.view(-1, 1))
        return gated.flatten(1)

    def _attend_chosen(
        self, queries: torch.Tensor, rotary: torch.Tensor, key: torch.Tensor, cache: LayerCache, choosing: Choosing,
        step: StepInputs,
    ) -> torch.Tensor:  # fmt: skip
        """Like `_attend`, where some queries attend to chosen positions."""
        assert self._chosen is not None
        others = choosing.others
        if others is None:
            self._chosen.write(key, key, cache.cache, choosing, self.options)
        else:
            attended, rows = cache._replace(prepared=others.prepared), others.rows
            around = self._attend(queries[rows], rotary[rows], key, attended, step.attention)
        query = self._absorbed(choosing.take(queries), choosing.take(rotary))
        positions = choosing.take(step.chosen_positions(len(queries)))
        values = self._values(self._chosen.attend(query, positions, cache.cache, choosing, self.options))
        if others is None:
            return values
        both = values.new_empty((len(queries), *values.shape[1:]))
        return both.index_copy_(0, choosing.rows, values).index_copy_(0, others.rows, around)

    def _attend(
        self, queries: torch.Tensor, rotary: torch.Tensor, key: torch.Tensor, cache: LayerCache,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # fmt: skip
        """Caches the vectors and attends: [queries, heads, plain_dim + rotated_dim] → [queries, heads, value_dim]."""
        latent, expansion = self._latent, cache.prepared.expansion
        if expansion is None:
            return self._attend_to_vectors(queries, rotary, key, cache, attention)
        values = queries.new_empty((*queries.shape[:2], latent.value_dim))
        if others := expansion.others:
            attended, rows = cache._replace(prepared=others.prepared), others.rows
            values[rows] = self._attend_to_vectors(queries[rows], rotary[rows], key, attended, attention)
        rotated = queries.new_empty((*queries.shape[:2], latent.rotated_dim))
        self._rotate(queries[..., latent.plain_dim :], rotary, rotated)
        expansion.attend(queries, rotated, key, self.kv_b_proj.expand, cache.cache, values, self.options.scale)
        return values

    def _attend_to_vectors(
        self, queries: torch.Tensor, rotary: torch.Tensor, key: torch.Tensor, cache: LayerCache,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # fmt: skip
        query = self._absorbed(queries, rotary)
        return self._values(attention.forward(query, key, key, cache.cache, cache.prepared, self.options))

    def _absorbed(self, queries: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        """Queries that attend to vectors: [queries, heads, plain_dim + rotated_dim] → [queries, heads, vector]."""
        latent = self._latent
        query = queries.new_empty((len(queries), self._heads, latent.rank + latent.rotated_dim))
        self.kv_b_proj.to_vector(queries[..., : latent.plain_dim], query[..., : latent.rank])
        self._rotate(queries[..., latent.plain_dim :], rotary, query[..., latent.rank :])
        return query

    def _values(self, output: torch.Tensor) -> torch.Tensor:
        """Sums of vectors [queries, heads, vector] → values [queries, heads, value_dim]."""
        values = output.new_empty((len(output), self._heads, self._latent.value_dim))
        self.kv_b_proj.to_values(output[..., : self._latent.rank], values)
        return values

    def _rotate(self, values: torch.Tensor, rotary: torch.Tensor, output: torch.Tensor) -> None:
        """Rotates [tokens, heads, rotated_dim] to `output`; both have any strides between tokens and heads."""
        if self._neighbors:
            paired = values.new_empty(values.shape)
            self._neighbors[values.shape[1]](values, paired)
            values = paired
        self._ops.rotate_pairs(values, rotary, output)


def _pairing(size: int) -> torch.Tensor:
    """The matrix [size, size] that puts values half a head apart next to each other."""
    return torch.eye(size)[torch.arange(size).view(2, -1).t().flatten()]


class HeadMatrices(PackedLayer):
    """Projections between a rank's heads and the cached vector: each head's key matrix and value matrix."""

    def __init__(
        self, heads: int, first_head: int, all_heads: int, latent: LatentConfig, context: LayerContext
    ) -> None:
        super().__init__()
        self._ops, self._context = context.ops, context
        self._plain_dim = latent.plain_dim
        self._rows = latent.plain_dim + latent.value_dim
        self._dtype = context.dtype
        self._shape = (heads, self._rows, latent.rank)
        self._to_vector: HeadsProduct | None = None
        self._to_values: HeadsProduct | None = None
        self._both: torch.Tensor | None = None
        self._adapters: HeadAdapters | None = None
        self._part = Part(first_head * self._rows, heads * self._rows, all_heads * self._rows)
        split = Split({"": self._part}, Part(0, latent.rank, latent.rank))
        self._held = hold(self, self, split, "linear", context)

    def pack(self) -> None:
        """See PackedLayer.pack."""
        weight = wide(self._held[0].take(), self._dtype).view(self._shape)
        keys, values = weight.split((self._plain_dim, self._rows - self._plain_dim), dim=1)
        self._to_vector = self._ops.head_matrices(keys.transpose(1, 2))
        self._to_values = self._ops.head_matrices(values)
        if self._context.expands_heads:
            self._both = weight.flatten(0, 1)
        del self._held
        if self._context.adapters is not None:
            heads, _, size = self._shape
            path = self._context.path
            self._adapters = self._context.adapters.heads(path, self._part, heads, self._plain_dim, size)

    def to_vector(self, plain: torch.Tensor, vectors: torch.Tensor) -> None:
        """Projects the plain part of queries, [tokens, heads, plain_dim], to `vectors`, [tokens, heads, rank]."""
        assert self._to_vector is not None
        self._to_vector(plain, vectors)
        if self._adapters is not None:
            self._adapters.to_inputs(plain, vectors)

    def to_values(self, vectors: torch.Tensor, values: torch.Tensor) -> None:
        """Projects outputs of attention, [tokens, heads, rank], to `values`, [tokens, heads, value_dim]."""
        assert self._to_values is not None
        self._to_values(vectors, values)
        if self._adapters is not None:
            self._adapters.to_rows(vectors, values)

    def expand(self, vectors: torch.Tensor) -> torch.Tensor:
        """See ExpandVectors; only if the context's expands_heads is set."""
        assert self._both is not None
        return F.linear(vectors[:, : self._shape[2]], self._both).unflatten(1, self._shape[:2])
