"""Grouped-query attention with rotary positions, as used by the decoder families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions, Prepared
from engine_svc.attention.chosen import Choosing
from engine_svc.attention.rotation import Rotation
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, qkv_parts
from engine_svc.layers.norm import HeadLayerNorm, ParallelRMSNorm, RMSNorm
from engine_svc.layers.split import Part
from engine_svc.models.attention_heads import kinds_of_layers, layer_heads, layer_kind
from engine_svc.models.config import ModelConfig
from engine_svc.models.sinks import head_sinks
from engine_svc.ops.base import HeadNorms, Ops
from engine_svc.recurrence.base import LayerState


class EntriesCache(NamedTuple):
    """A layer's cache of compressed entries, and what the attention backend has prepared for it."""

    cache: torch.Tensor
    prepared: Prepared


class LayerCache(NamedTuple):
    """What a layer attends to: its KV cache, and what the attention backend has prepared."""

    cache: torch.Tensor
    prepared: Prepared
    choosing: Choosing | None = None  # queries that attend to chosen positions only; None if there are none
    index_keys: torch.Tensor | None = None  # the cache of the layer's indexer; None if it has none
    entries: EntriesCache | None = None  # None if the layer does not compress


class CrossCache(NamedTuple):
    """KV cache of a layer that attends to text and, apart from it, to an encoder's output."""

    text: LayerCache
    encoded: Prepared  # the encoder's output is in the same cache


class BothCaches(NamedTuple):
    """KV cache and state of a layer that has both attention and a recurrent layer."""

    attended: LayerCache
    state: LayerState


AnyLayerCache = LayerCache | LayerState | BothCaches | CrossCache | None


def layer_cache(attended: LayerCache | None, state: LayerState | None) -> AnyLayerCache:
    """Combines the KV cache and the state of a layer, either of which may be None."""
    if attended is not None and state is not None:
        return BothCaches(attended, state)
    return state if attended is None else attended


@dataclass
class Choice:
    """What the last layer with an indexer has chosen in this pass; see Indexer.forward."""

    positions: torch.Tensor | None = None


@dataclass
class Shortcut:
    """What the mixture of experts beside the current pair of layers has put out; see models/paired_layer.py."""

    output: torch.Tensor | None = None  # [tokens, hidden_size]


@dataclass(frozen=True)
class StepInputs:
    """Inputs shared by the layers of one forward pass."""

    rotary: torch.Tensor  # [tokens, 2, rotary_dim / 2]
    local_rotary: torch.Tensor  # the same for layers with a sliding window
    attention: AttentionBackend
    query_scales: torch.Tensor | None = None  # float32 [tokens, 1], see Temperature
    output_rows: torch.Tensor | None = None  # int64 [outputs], see OutputRows; None means that all rows are needed
    token_inputs: Callable[[int], torch.Tensor] | None = None  # of a layer: [tokens, size], see TokenInputs
    encoded: torch.Tensor | None = None  # [rows, hidden_size], an encoder's output that is yet to be cached
    choice: Choice = field(default_factory=Choice)
    shortcut: Shortcut = field(default_factory=Shortcut)
    token_ids: torch.Tensor | None = None  # int64 [tokens], for experts that are chosen by these; else None
    rotary_table: torch.Tensor | None = None  # rows of all positions, for entries, which have positions of their own

    def outputs(self, ops: Ops, hidden: torch.Tensor) -> torch.Tensor:
        """Takes the rows that are needed: [tokens, ...], with contiguous rows -> [outputs, ...]."""
        return hidden if self.output_rows is None else ops.take_rows(hidden, self.output_rows)

    def chosen_positions(self, queries: int) -> torch.Tensor:
        """Positions that the layer's queries attend to: int32 [queries, most], of a layer that may have had more."""
        positions = self.choice.positions
        assert positions is not None
        return positions if len(positions) == queries else positions[self.output_rows]


class Attention(torch.nn.Module):
    """An attention layer: projections, norms, rotation and the backend's attention."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__()
        self._ops = context.ops
        heads, value_dim = layer_heads(config, index), config.value_dim
        self._head_dim = head_dim = heads.size
        parts = qkv_parts(context.groups.tensor, heads.queries, heads.number, head_dim, value_dim)
        self._heads, self._kv_heads = parts["q"].count // head_dim, parts["k"].count // head_dim
        self._first_head = parts["q"].first // head_dim
        has_sinks = _has_sinks(config, index)
        self.sinks = head_sinks(self._first_head, self._heads, context) if has_sinks else None
        # Text is no longer than the encoder's tokens before it: in chunks of their number, it attends to text alone.
        window = config.encoder_tokens or config.sliding_windows[index]
        is_chunk = config.encoder_tokens > 0 or (config.windows_are_chunks and window is not None)
        self.options = AttentionOptions(
            config.attention_scale, window, config.attention_softcap, self.sinks, is_chunk, config.bidirectional,
            self._slopes(config, context), kinds_of_layers(config).index(layer_kind(config, index)),
        )  # fmt: skip
        self._clip = config.qkv_clip
        self._rotates, self._interleaved = index not in config.no_rope_layers, config.rope_interleaved
        self._scales_queries = config.temperature is not None and config.temperature.rotating == self._rotates
        self._projected = self._projections(config, index)
        own = {name: parts[name] for name in self._projected}
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size, own, bias=config.qkv_bias, context=context.at("qkv_proj"), layout=config.qkv_layout
        )
        if self.qkv_proj.bias is not None and not config.key_bias:
            self.qkv_proj.bias.keep_zero("k")
        self.o_proj = RowParallelLinear(
            heads.queries * (value_dim or head_dim), config.hidden_size, bias=config.output_bias,
            context=context.at("o_proj"),
        )  # fmt: skip
        self._norms = config.qk_norm
        self._head_norms: HeadNorms | None = None
        for name in ("q", "k") if config.qk_norm not in ("none", "weightless") else ():
            if name in own:
                self.add_module(f"{name}_norm", _norm_of_heads(config, context, parts[name], index))
        if config.qk_norm in ("head", "rotated"):
            of_keys = self.k_norm if "k" in own else self.q_norm
            self._head_norms = HeadNorms(self.q_norm.weight, of_keys.weight, config.norm_eps)
        elif config.qk_norm == "weightless" and self._rotates:
            ones = torch.ones(head_dim, dtype=context.dtype, device=context.device)
            self._head_norms = HeadNorms(ones, ones, config.norm_eps)

    def _projections(self, config: ModelConfig, index: int) -> str:
        """Which of queries, keys and values the layer has projections for, by their first letters."""
        return "qkv"

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [outputs, hidden_size]; see StepInputs.output_rows."""
        return self.o_proj(self._attended(hidden, cache, step))

    def _attended(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [outputs, query heads * head_dim]."""
        return self.attend_projected(self.qkv_proj(hidden), cache, step)

    def attend_projected(self, projected: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """Output of qkv_proj, which may be changed in place → [outputs, query heads * head_dim]."""
        if self._norms in ("each", "all"):
            self._normalise(projected)
        if self._clip is not None:
            self._ops.clip(projected, self._clip)
        return self._attend(projected.view(len(projected), -1, self._head_dim), cache, step)

    def _attend(self, heads: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """Queries, keys and values [tokens, all heads, head_dim] → [outputs, query heads * head_dim]."""
        where = cache.cache, cache.prepared, self.options
        scales = step.query_scales if self._scales_queries else None
        if scales is not None and self._head_norms is None:  # may come before the rotation, but not before norms
            self._ops.scale_rows(heads[:, : self._heads].flatten(1), scales)
            scales = None
        if scales is None and (self._rotates or self._head_norms is not None):
            return step.attention.rotate_and_forward(heads, self._rotation(step), *where).flatten(1)
        together, value = heads.split((self._heads + self._kv_heads, self._kv_heads), dim=1)
        if scales is not None:
            together = self._rotation(step)(together)
            self._ops.scale_rows(together[:, : self._heads].flatten(1), scales)
        query, key = together.split((self._heads, self._kv_heads), dim=1)
        return step.attention.forward(step.outputs(self._ops, query), key, value, *where).flatten(1)

    def _rotation(self, step: StepInputs) -> Rotation:
        """The layer's rotation; includes the norms of heads, if all heads have the same norm weights."""
        table = step.rotary if self.options.sliding_window is None else step.local_rotary
        if not self._rotates:
            table = table[..., :0]
        return Rotation(
            self._ops, table, self._heads, self._head_norms, self._interleaved, self._norms == "rotated",
            step.output_rows,
        )  # fmt: skip

    def _slopes(self, config: ModelConfig, context: LayerContext) -> torch.Tensor | None:
        """ALiBi slopes of the heads that this rank attends with: those of all ranks that share the context."""
        if not config.attention_slopes:
            return None
        sharing = context.groups.decode_context
        first = self._first_head - sharing.rank * self._heads
        own = config.attention_slopes[first : first + sharing.world_size * self._heads]
        return torch.tensor(own, dtype=torch.float32, device=context.device)

    def _normalise(self, projected: torch.Tensor) -> None:
        """Normalizes queries and keys in place, with a weight for each value of their heads."""
        sizes = (self._heads * self._head_dim, self._kv_heads * self._head_dim, self._kv_heads * self._head_dim)
        query, key, _ = projected.split(sizes, dim=-1)
        self.q_norm(query)
        self.k_norm(key)


def _has_sinks(config: ModelConfig, index: int) -> bool:
    has_window = config.sliding_windows[index] is not None
    return config.attention_sinks == "all" or (config.attention_sinks == "windowed" and has_window)


def _norm_of_heads(config: ModelConfig, context: LayerContext, part: Part, index: int) -> torch.nn.Module:
    """The norm of queries or of keys, depending on `config.qk_norm`."""
    if config.qk_norm == "all":
        return ParallelRMSNorm(part, config.norm_eps, context=context)
    if config.qk_norm == "each":
        return HeadLayerNorm(part, config.head_dim, config.norm_eps, context=context)
    return RMSNorm(layer_heads(config, index).size, config.norm_eps, context=context, offset=config.norm_offset)
