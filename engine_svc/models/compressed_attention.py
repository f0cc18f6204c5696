"""Attention to recent tokens and compressed entries (DeepSeek V4): compressed sparse and heavily compressed attention.

All heads share one key, which is its own value, so its rotation must be undone in what attention returns. Whoever
reads the rotated part of a head here finds its pairs of values half of that part apart; see Ops.rotate_pairs.
"""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionOptions
from engine_svc.attention.compressed import (
    CellsPrepared,
    CompressedBackend,
    EntriesPrepared,
    SeenEntries,
)
from engine_svc.attention.compressed_step import Compression
from engine_svc.attention.compressed_sums import SeenSums
from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear, whole_linear
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.layers.split import Part, Split, hold
from engine_svc.models.attention import LayerCache, StepInputs
from engine_svc.models.compression_config import CompressionConfig
from engine_svc.models.config import ModelConfig
from engine_svc.models.sinks import head_sinks
from engine_svc.ops.base import HeadsProduct, Ops
from engine_svc.ops.weights import wide


class CompressedAttention(torch.nn.Module):
    """A layer's attention, with the same interface as Attention."""

    def __init__(self, config: ModelConfig, compression: CompressionConfig, context: LayerContext, index: int) -> None:
        super().__init__()
        group, size = context.groups.tensor, config.hidden_size
        self._ops, self._form, self._kind = context.ops, compression, compression.layers[index]
        self._heads = group.divide(config.num_heads, "attention heads")
        self._groups = group.divide(compression.groups, "groups of attention heads")
        first_head = group.rank * self._heads
        dim, rank = compression.head_dim, compression.query_rank
        self.q_a_proj = whole_linear(size, rank, bias=False, context=context.at("q_a_proj"))
        self.q_a_layernorm = RMSNorm(rank, config.norm_eps, context=context)
        queries = Part(first_head * dim, self._heads * dim, config.num_heads * dim)
        self.q_b_proj = ColumnParallelLinear(rank, {"": queries}, bias=False, context=context.at("q_b_proj"))
        self._plain_weight = torch.ones(dim, dtype=context.dtype, device=context.device)
        self._epsilon = config.norm_eps
        self.kv_proj = whole_linear(size, dim, bias=False, context=context.at("kv_proj"))
        self.kv_norm = RMSNorm(dim, config.norm_eps, context=context)
        self.o_a_proj = GroupedProjection(
            self._groups, compression, config.num_heads * dim // compression.groups, context.at("o_a_proj")
        )
        self.o_b_proj = RowParallelLinear(
            compression.groups * compression.group_rank, size, bias=False, context=context.at("o_b_proj")
        )
        self.sinks = head_sinks(first_head, self._heads, context)
        self.options = AttentionOptions(config.attention_scale, compression.window, sinks=self.sinks)
        self.compressor: Compressor | None = None
        self.indexer: EntryIndexer | None = None
        if self._kind is not None:
            self.compressor = Compressor(config, compression, self._kind, dim, context.at("compressor"))
            if self._kind.is_sparse:
                self.indexer = EntryIndexer(config, compression, self._kind, context.at("indexer"))

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        backend, cells = step.attention, cache.prepared
        assert isinstance(backend, CompressedBackend)
        assert isinstance(cells, CellsPrepared)
        rotary = step.local_rotary if self._kind is None else step.rotary
        dim, rotated = self._form.head_dim, self._form.rotated_dim
        query_vectors = self.q_a_layernorm(self.q_a_proj(hidden))
        query = self.q_b_proj(query_vectors).view(-1, dim)
        query = self._ops.rms_norm(query, self._plain_weight, self._epsilon).view(len(hidden), -1, dim)
        turn_ends(self._ops, query, rotary, rotated)
        key = self.kv_norm(self.kv_proj(hidden))
        turn_ends(self._ops, key[:, None], rotary, rotated)
        cache.cache[..., :dim][cells.new] = key
        entries = self._entries(hidden, query_vectors, backend, cache, step)
        found = SeenSums(backend, cache.cache[..., :dim], cells, entries, self.options).of(query)
        turn_back(found[..., dim - rotated :], rotary)
        return self.o_b_proj(self.o_a_proj(found.view(len(hidden), self._groups, -1)))

    def _entries(
        self, hidden: torch.Tensor, query_vectors: torch.Tensor, backend: CompressedBackend, cache: LayerCache,
        step: StepInputs,
    ) -> SeenEntries | None:  # fmt: skip
        """Makes the entries that the new tokens close, and finds those that tokens attend to."""
        if self._kind is None or self.compressor is None or cache.entries is None:
            return None
        prepared = cache.entries.prepared
        assert isinstance(prepared, EntriesPrepared)
        dim = self._form.head_dim
        entries = backend.entries_in(cache.entries.cache, self._kind, self._form.entry_size(self._kind))
        self.compressor(hidden, cache, prepared, entries[..., :dim], dim, step)
        chosen = None
        if self.indexer is not None:
            chosen = self.indexer(hidden, query_vectors, backend, cache, prepared, entries[..., dim:], step)
        return SeenEntries(entries[..., :dim], prepared, self._kind, chosen)


class Compressor(torch.nn.Module):
    """Makes entries: sums of vectors of the tokens they are made of, with a weight for each token and value.

    If entries overlap, a token has two vectors and two sets of weights: the first are for the entry after its own.
    """

    def __init__(
        self, config: ModelConfig, compression: CompressionConfig, kind: Compression, dim: int, context: LayerContext,
        first_input: int = 0,
    ) -> None:  # fmt: skip
        """
        Args:
            dim: numbers of an entry.
            first_input: where a cell's inputs for these entries begin, counted from those for the layer's first ones.
        """
        super().__init__()
        self._ops, self._kind, self._rotated, self._dim = context.ops, kind, compression.rotated_dim, dim
        self._first_input, self._width = first_input, kind.series * dim
        self.vectors = ReplicatedLinear(config.hidden_size, self._width, wide=False, context=context.at("vectors"))
        self.weights = ReplicatedLinear(config.hidden_size, self._width, wide=False, context=context.at("weights"))
        self.position_bias = LoadedParameter((kind.rate, self._width), torch.float32, context.device)
        self.norm = RMSNorm(dim, config.norm_eps, context=context)

    def forward(
        self, hidden: torch.Tensor, cache: LayerCache, prepared: EntriesPrepared, entries: torch.Tensor,
        cell_start: int, step: StepInputs,
    ) -> None:  # fmt: skip
        """Caches the new tokens' vectors and weights, and the entries that these tokens close.

        Args:
            hidden: [tokens, hidden_size]
            entries: [num_blocks, entries, dim], the layer's cache of them.
            cell_start: where a cell's inputs begin.
        """
        cells = cache.prepared
        assert isinstance(cells, CellsPrepared)
        first = cell_start + self._first_input
        own = cache.cache[..., first : first + 2 * self._width]
        own[cells.new] = torch.cat((self.vectors(hidden), self.weights(hidden)), dim=1)
        ends = prepared.step.ends[self._kind].positions
        if not len(ends):
            return
        read = cells.read[self._kind]
        vectors, weights = own[read.places].float().split(self._width, dim=-1)  # [entries, span, series * dim]
        bias, absent = self.position_bias, read.absent[:, :, None]
        weights = self._overlapped(weights) + self._overlapped(bias.repeat(self._kind.series, 1)[None])
        shares = weights.masked_fill(absent, -torch.inf).softmax(dim=1)
        sums = (shares * self._overlapped(vectors).masked_fill(absent, 0)).sum(dim=1)
        found = self.norm(sums.to(hidden.dtype))
        assert step.rotary_table is not None
        turned = self._ops.take_rows(step.rotary_table, ends + 1 - self._kind.rate)
        turn_ends(self._ops, found[:, None], turned, self._rotated)
        entries[prepared.new[self._kind]] = found

    def _overlapped(self, values: torch.Tensor) -> torch.Tensor:
        """[entries, span, series * dim] → [entries, span, dim]: of tokens before an entry's own, the first series."""
        if self._kind.series == 1:
            return values
        rate, dim = self._kind.rate, self._dim
        return torch.cat((values[:, :rate, :dim], values[:, rate:, dim:]), dim=1)


class EntryIndexer(torch.nn.Module):
    """Chooses entries by small keys of theirs; every rank has all heads, so that all ranks choose alike."""

    def __init__(
        self, config: ModelConfig, compression: CompressionConfig, kind: Compression, context: LayerContext
    ) -> None:
        super().__init__()
        heads, dim = compression.index_heads, compression.index_head_dim
        self._ops, self._form, self._kind = context.ops, compression, kind
        self.q_b_proj = whole_linear(compression.query_rank, heads * dim, bias=False, context=context.at("q_b_proj"))
        self.weights_proj = ReplicatedLinear(config.hidden_size, heads, context=context.at("weights_proj"))
        self.compressor = Compressor(
            config, compression, kind, dim, context.at("compressor"), 2 * kind.series * compression.head_dim
        )

    def forward(
        self, hidden: torch.Tensor, query_vectors: torch.Tensor, backend: CompressedBackend, cache: LayerCache,
        prepared: EntriesPrepared, keys: torch.Tensor, step: StepInputs,
    ) -> torch.Tensor | None:  # fmt: skip
        """Makes the keys of new entries, and chooses entries; see CompressedBackend.choose. None means all."""
        self.compressor(hidden, cache, prepared, keys, self._form.head_dim, step)
        if prepared.step.longest[self._kind] <= self._form.most:
            return None
        query = self.q_b_proj(query_vectors).unflatten(1, (self._form.index_heads, -1))
        turn_ends(self._ops, query, step.rotary, self._form.rotated_dim)
        return backend.choose(query, self.weights_proj(hidden), keys, prepared, self._kind, self._form.most)


class GroupedProjection(PackedLayer):
    """A projection of each group of heads by its own matrix; every rank has some of the groups."""

    def __init__(self, groups: int, compression: CompressionConfig, input_size: int, context: LayerContext) -> None:
        super().__init__()
        self._ops, self._dtype, rank = context.ops, context.dtype, compression.group_rank
        self._shape = groups, rank, input_size
        self._product: HeadsProduct | None = None
        first = context.groups.tensor.rank * groups * rank
        rows = Part(first, groups * rank, compression.groups * rank)
        self._held = hold(self, self, Split({"": rows}, Part(0, input_size, input_size)), "linear", context)

    def pack(self) -> None:
        """See PackedLayer.pack."""
        self._product = self._ops.head_matrices(wide(self._held[0].take(), self._dtype).view(self._shape))
        del self._held

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """[tokens, groups, values of a group's heads] → [tokens, groups * group_rank]."""
        assert self._product is not None
        output = heads.new_empty((len(heads), *self._shape[:2]))
        self._product(heads, output)
        return output.flatten(1)


def turn_ends(ops: Ops, heads: torch.Tensor, rotary: torch.Tensor, rotated: int) -> None:
    """Rotates the last values of [tokens, heads, head_dim] in place, and puts the two of each pair apart."""
    ends = heads[..., heads.shape[2] - rotated :]
    turned = ends.new_empty(ends.shape)
    ops.rotate_pairs(ends, rotary, turned)
    ends.copy_(turned)


def turn_back(ends: torch.Tensor, rotary: torch.Tensor) -> None:
    """Undoes `turn_ends`, given these last values [tokens, heads, rotated]; in place."""
    first, second = ends.float().chunk(2, dim=-1)
    cosine, sine = rotary[:, 0, None].float(), rotary[:, 1, None].float()
    pairs = first * cosine + second * sine, second * cosine - first * sine
    ends.copy_(torch.stack(pairs, dim=-1).flatten(-2))
