"""The CPU backend in torch: gathers whole blocks and runs torch's fused attention on them.

The cache of a layer is [planes, num_kv_heads, num_blocks + 1, block_size * head_dim]. The heads come first, so that the
blocks gathered for all sequences form a batch of matrices without any further copy. The last block belongs to no
sequence and holds zeros.

Positions that a query does not see have weight 0 but still enter the sum, and 0 times NaN is NaN. So wherever blocks
may hold remains of other sequences, they are replaced by zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    Prepared,
    first_key,
)
from engine_svc.attention.reference import distances, softmax_with_sinks
from engine_svc.attention.stored import bits, to_stored
from engine_svc.memory import zeros_when_touched


@dataclass(frozen=True)
class View:
    """Which positions of their blocks decoding sequences see."""

    blocks: torch.Tensor  # int32 [num_seqs * blocks]; blocks that are not seen are replaced by the block of zeros
    hidden: torch.Tensor  # int64, indices into [num_seqs * positions]: unseen positions in blocks that are seen
    mask: torch.Tensor  # [1, num_seqs, 1, positions], 0 where the query sees the key and -inf elsewhere


@dataclass(frozen=True)
class Decode:
    """Sequences with one new token each, padded to the longest."""

    rows: torch.Tensor | None  # int64 [num_seqs], rows of the flat batch; None means all rows, in order
    block_table: torch.Tensor  # int32 [num_seqs, blocks], rows contiguous
    seq_lens: torch.Tensor  # int32 [num_seqs]
    views: dict[tuple[int | None, bool, torch.dtype], View]  # by window, chunked and dtype; made when first needed


@dataclass(frozen=True)
class CpuPrepared(Prepared):
    """A batch, split into sequences that decode and sequences that prefill (have several new tokens)."""

    decode: Decode | None
    prefilling: list[int]


class CpuBackend(AttentionBackend):
    """Batched decode, per-sequence prefill."""

    name = "cpu"
    block_dimension = 2

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate; per layer [planes, num_kv_heads, num_blocks + 1, block_size * head_dim]."""
        shape, count = self.shape, num_blocks + 1
        size = (shape.planes, shape.num_kv_heads, count, shape.block_size * shape.head_dim)
        return [zeros_when_touched(size, shape.stored, in_huge_pages=False) for _ in range(num_layers)]

    def allocate_memory(self, num_blocks: int, count: int, row: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate_memory; [planes, 1, num_blocks + 1, block_size * row] each."""
        size = (self.shape.planes, 1, num_blocks + 1, self.shape.block_size * row)
        return [zeros_when_touched(size, self.shape.stored, in_huge_pages=False) for _ in range(count)]

    def carve(self, memory: torch.Tensor, index: int) -> torch.Tensor:
        """See AttentionBackend.carve; [planes, num_kv_heads, num_blocks + 1, block_size * head_dim]."""
        size = self.shape.block_size * self.shape.row
        own = memory.view(self.shape.stored)[:, 0, :, index * size : (index + 1) * size]
        return own.unflatten(-1, (self.shape.num_kv_heads, -1)).transpose(1, 2)

    def prepare(self, metadata: AttentionMetadata) -> CpuPrepared:
        """Separates sequences that decode from those that prefill."""
        prefilling, decoding, rows, start = [], [], [], 0
        for index, query_len in enumerate(metadata.query_lens_host):
            if query_len == 1:
                decoding.append(index)
                rows.append(start)
            else:
                prefilling.append(index)
            start += query_len
        decode = self._decode(metadata, decoding, torch.tensor(rows) if prefilling else None) if decoding else None
        return CpuPrepared(metadata, decode, prefilling)

    def _decode(self, metadata: AttentionMetadata, indices: list[int], rows: torch.Tensor | None) -> Decode:
        longest = max(metadata.seq_lens_host[index] for index in indices)
        blocks = -(-longest // self.shape.block_tokens)
        chosen = torch.tensor(indices) if rows is not None else slice(None)
        return Decode(rows, metadata.block_table[chosen, :blocks], metadata.seq_lens[chosen], {})

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See AttentionBackend.attend."""
        assert isinstance(prepared, CpuPrepared)
        self.write(key, value, cache, prepared.metadata.slot_mapping)
        output = query.new_empty(query.shape)
        if prepared.decode is not None:
            self.attend_decode(query, cache, prepared.decode, options, output, lse)
        if prepared.prefilling:
            self.attend_prefill(query, cache, prepared, options, output, lse)
        return output

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        slot_mapping = slot_mapping[: len(key)]
        if self.shape.part.size > 1:
            own = slot_mapping >= 0
            key, value, slot_mapping = key[own], value[own], slot_mapping[own]
        size = self.shape.block_size
        at, cells = (slice(None), slot_mapping // size, slot_mapping % size), bits(cache).unflatten(-1, (size, -1))
        cells[0][at] = bits(to_stored(key.transpose(0, 1), cache.dtype))
        cells[-1][at] = bits(to_stored(value.transpose(0, 1), cache.dtype))

    def heads(self, cache: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend.heads."""
        return cache.unflatten(-1, (self.shape.block_size, -1))

    def attend_decode(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        decode: Decode,
        options: AttentionOptions,
        output: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Writes the decoding sequences' rows of the output, [tokens, heads, head_dim], and of lse."""
        rows = slice(None) if decode.rows is None else decode.rows
        output[rows], sums = self._attend(query[rows], cache, decode, options, lse is not None)
        if lse is not None:
            lse[rows] = sums

    def _attend(
        self, query: torch.Tensor, cache: torch.Tensor, decode: Decode, options: AttentionOptions, wants_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of queries [num_seqs, heads, dim].

        To torch, kv heads are the batch, sequences the heads, and the query heads of a kv head its queries.
        """
        kv_heads, dim = self.shape.num_kv_heads, self.shape.head_dim
        num_seqs = query.shape[0]
        view = self._view(decode, options, query.dtype, nobodys=cache.shape[2] - 1)
        gathered = self._gather(cache, view.blocks, query).view(self.shape.planes, kv_heads, -1, dim)
        gathered = gathered.index_fill_(2, view.hidden, 0).view(self.shape.planes, kv_heads, num_seqs, -1, dim)
        grouped = query.reshape(num_seqs, kv_heads, -1, dim).transpose(0, 1)
        lower = self._lower(decode, options)
        output, lse = _attend(
            grouped, gathered[0], gathered[-1], view.mask, options, self._sinks(options), lower, wants_lse
        )
        sums = None if lse is None else lse.transpose(0, 1).reshape(num_seqs, -1)
        return output.transpose(0, 1).reshape(num_seqs, -1, dim), sums

    def _gather(self, cache: torch.Tensor, blocks: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Gathers the blocks' keys and values, converted to the query's dtype."""
        return bits(cache).index_select(2, blocks).view(cache.dtype).to(query.dtype)

    def _sinks(self, options: AttentionOptions) -> torch.Tensor | None:
        return None if options.sinks is None else options.sinks.view(self.shape.num_kv_heads, 1, -1, 1)

    def _lower(self, decode: Decode, options: AttentionOptions) -> torch.Tensor | None:
        """By how much ALiBi lowers scores: [kv_heads, num_seqs, query heads of each, positions]; None without ALiBi."""
        if options.slopes is None:
            return None
        positions = self.shape.part.positions(torch.arange(decode.block_table.shape[1] * self.shape.block_size))
        at = decode.seq_lens.view(1, -1, 1, 1) - 1
        return distances(at, positions, options.slopes.view(self.shape.num_kv_heads, 1, -1, 1))

    def _view(self, decode: Decode, options: AttentionOptions, dtype: torch.dtype, nobodys: int) -> View:
        """What the sequences see; computed once and shared by the layers.

        Args:
            nobodys: index of the block of zeros.
        """
        kind = options.sliding_window, options.chunked, dtype
        if kind not in decode.views:
            num_seqs, blocks = decode.block_table.shape
            positions = self.shape.part.positions(torch.arange(blocks * self.shape.block_size))[None, :]
            lengths = decode.seq_lens[:, None]
            seen = (positions < lengths) & (positions >= options.first_seen(lengths - 1))
            in_blocks = seen.view(num_seqs, blocks, -1)
            held = in_blocks.any(-1)
            decode.views[kind] = View(
                torch.where(held, decode.block_table, nobodys).flatten(),
                (held[..., None] & ~in_blocks).flatten().nonzero()[:, 0],
                torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)[None, :, None, :],
            )
        return decode.views[kind]

    def attend_prefill(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        prepared: CpuPrepared,
        options: AttentionOptions,
        output: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Writes the prefilling sequences' rows of the output, [tokens, heads, dim], and of lse."""
        metadata, window, part = prepared.metadata, options.sliding_window, self.shape.part
        for index in prepared.prefilling:
            query_len, seq_len = metadata.query_lens_host[index], metadata.seq_lens_host[index]
            start = int(metadata.query_start_loc[index])
            first, end = part.count(first_key(query_len, seq_len, options)), part.count(seq_len)
            start_block = first // self.shape.block_size
            blocks = metadata.block_table[index, start_block : -(-end // self.shape.block_size)]
            gathered = self._gather(cache, blocks, query).view(
                self.shape.planes, 1, self.shape.num_kv_heads, -1, self.shape.head_dim
            )
            seen = slice(first - start_block * self.shape.block_size, end - start_block * self.shape.block_size)
            keys, values = gathered[0, ..., seen, :], gathered[-1, ..., seen, :]
            whole = query_len == seq_len and (window is None or window >= seq_len) and not _is_special(options)
            mask = lower = None
            at, positions = (
                torch.arange(seq_len - query_len, seq_len)[:, None],
                part.positions(torch.arange(first, end)),
            )
            if lse is not None or not whole:
                mask = (positions < options.seen_until(at)) & (positions >= options.first_seen(at))
            if options.slopes is not None:
                lower = distances(at, positions, options.slopes[:, None, None])
            sinks = None if options.sinks is None else options.sinks[:, None, None]
            rows = slice(start, start + query_len)
            queries = query[rows].transpose(0, 1)[None]
            found, sums = _attend(queries, keys, values, mask, options, sinks, lower, lse is not None)
            output[rows] = found[0].transpose(0, 1)
            if lse is not None and sums is not None:
                lse[rows] = sums[0].transpose(0, 1)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
    lower: torch.Tensor | None,
    wants_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of tensors [batch, heads, positions, dim]; several query heads may share a key-value head.

    Args:
        mask: which keys are seen: boolean, or 0 where seen and minus infinity elsewhere. None means that queries and
            keys are those of a whole sequence, causal or bidirectional.
        sinks: the options' sinks, in a shape that broadcasts to [batch, heads, positions, 1].
        lower: by how much the options' slopes lower the scores; in a shape that broadcasts to that of the scores.
        wants_lse: whether to return lse (see AttentionBackend.attend) as a second result [batch, heads, positions].
            Requires a mask.
    """
    if not _is_special(options) and not wants_lse:
        is_causal = mask is None and not options.bidirectional
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=is_causal, scale=options.scale, enable_gqa=True
        ), None
    assert mask is not None
    group = query.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (keys, values))
    scores = query @ keys.transpose(-1, -2) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if lower is not None:
        scores = scores.float() - lower
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    weights, lse = softmax_with_sinks(scores.float().masked_fill(hidden, -torch.inf), sinks)
    return weights.to(values.dtype) @ values, lse


def _is_special(options: AttentionOptions) -> bool:
    """Whether the options need something that torch's fused attention cannot do."""
    return options.softcap is not None or options.sinks is not None or options.slopes is not None
