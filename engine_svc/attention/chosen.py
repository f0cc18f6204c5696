"""Attention to chosen positions (DeepSeek sparse attention, DeepSeek-V3.2, 2025).

A layer's indexer scores the positions that a query sees, by keys of its own that are cached beside what the layer
caches, and the query attends to the best ones alone. Queries that see no more positions than may be chosen attend to
all of them in the usual way. Here, layers have compressed attention; see chosen_blocks.py for others.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, Others, Prepared
from engine_svc.attention.reference import softmax_with_sinks
from engine_svc.attention.stored import bits
from engine_svc.transfer import to_device_together

PART_BYTES = 64 << 20  # of scores or gathered vectors at a time
CHOICE_BYTES = 3 * PART_BYTES  # that a choice takes: scores, their copy while they are sorted, and chosen positions
_ALIGNED = 16  # queries, so that Triton's kernels need not be compiled for other addresses


class Span(NamedTuple):
    """Consecutive choosing queries of one sequence."""

    sequence: int
    first: int  # counted among the choosing queries
    end: int
    seq_len: int


@dataclass(frozen=True)
class Choosing:
    """The queries of a batch that see more positions than may be chosen."""

    rows: torch.Tensor  # int64 [choosing], their rows among the queries of the batch
    sequences: torch.Tensor  # int32 [choosing]
    positions: torch.Tensor  # int32 [choosing]
    spans: list[Span]
    metadata: AttentionMetadata  # of the batch
    others: Others | None  # None if all queries of the batch choose

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of choosing queries: [queries, ...] → [choosing, ...]."""
        return values if self.others is None else values[self.rows]

    @property
    def longest(self) -> int:
        """One more than the last position that any of them sees."""
        return max(span.seq_len for span in self.spans)


class IndexQueries(NamedTuple):
    """What the choosing queries score positions with."""

    query: torch.Tensor  # [choosing, heads, key_dim]
    weights: torch.Tensor  # float32 [choosing, heads]


class SparseAttention(ABC):
    """What all choices of positions in one rank's layers have in common: which queries choose, and what is cached.

    Attributes:
        shared_layers: layers that attend to what an earlier one has chosen, without an indexer.
        whole_layers: layers that attend to all positions, without an indexer.
    """

    def __init__(
        self, attention: AttentionBackend, keys: AttentionBackend, *, shared_layers: frozenset[int] = frozenset(),
        whole_layers: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        """
        Args:
            attention: caches what queries attend to; its shape has `most_chosen`.
            keys: caches the indexers' keys, one head of them that are their own values, in blocks of the same size.
        """
        self.attention, self.keys = attention, keys
        self.shared_layers, self.whole_layers = shared_layers, whole_layers
        self.most = attention.shape.most_chosen

    def prepare(self, metadata: AttentionMetadata, prepare: Callable[[AttentionMetadata], Prepared]) -> Choosing | None:
        """Finds the queries that choose; None if there are none. Once per step.

        Args:
            prepare: prepares the others, see AttentionBackend.prepare.
        """
        query_lens, seq_lens = (np.array(lens, np.int64) for lens in (metadata.query_lens_host, metadata.seq_lens_host))
        if int(seq_lens.max(initial=0)) <= self.most:
            return None
        firsts = seq_lens - query_lens
        attending = np.clip(self.most - firsts, 0, query_lens)  # the first queries of each sequence
        counts = query_lens - attending
        starts = np.cumsum(query_lens) - query_lens
        ends = np.cumsum(counts)
        chosen = np.flatnonzero(counts)
        rows, positions, sequences = to_device_together(
            [
                _ranges(starts + attending, counts), _ranges(firsts + attending, counts).astype(np.int32),
                np.repeat(np.arange(len(counts)), counts).astype(np.int32),
            ],
            self.attention.shape.device,
        )  # fmt: skip
        spans = [Span(int(i), int(ends[i] - counts[i]), int(ends[i]), int(seq_lens[i])) for i in chosen]
        others = self._others(metadata, starts, attending, firsts, prepare) if attending.any() else None
        return Choosing(rows, sequences, positions, spans, metadata, others)

    def _others(
        self, metadata: AttentionMetadata, starts: npt.NDArray[np.int64], lens: npt.NDArray[np.int64],
        firsts: npt.NDArray[np.int64], prepare: Callable[[AttentionMetadata], Prepared],
    ) -> Others:  # fmt: skip
        """The queries that attend to all they see: the first `lens` of each sequence, as sequences that end there."""
        present = np.flatnonzero(lens)
        lens, seq_lens = lens[present], (firsts + lens)[present]
        rows, own, start_loc, lengths = to_device_together(
            [
                _ranges(starts[present], lens), present, np.concatenate(([0], np.cumsum(lens))).astype(np.int32),
                seq_lens.astype(np.int32),
            ],
            self.attention.shape.device,
        )  # fmt: skip
        batch = dataclasses.replace(
            metadata, query_start_loc=start_loc, seq_lens=lengths, block_table=metadata.block_table[own],
            query_lens_host=lens.tolist(), seq_lens_host=seq_lens.tolist(),
        )  # fmt: skip
        return Others(rows, prepare(batch))

    def write(
        self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, choosing: Choosing,
        options: AttentionOptions,
    ) -> None:  # fmt: skip
        """Caches keys and values [tokens, key-value heads, head_dim] of all new tokens, if no `others` do."""
        scales = self.attention.scales_of(options)
        self.attention.write(_over(key, scales.key), _over(value, scales.value), cache, choosing.metadata.slot_mapping)

    def _slices(self, choosing: Choosing, heads: int) -> Iterator[slice]:
        """Choosing queries that are scored at a time."""
        count, size = len(choosing.rows), max(1, PART_BYTES // (self._score_bytes(heads) * choosing.longest))
        size = size // _ALIGNED * _ALIGNED or size
        return (slice(first, min(first + size, count)) for first in range(0, count, size))

    @abstractmethod
    def _score_bytes(self, heads: int) -> int:
        """Bytes that scoring takes for each query and position."""


class ChosenAttention(SparseAttention):
    """The choice of positions, and attention to them, in one rank's layers with compressed attention."""

    def choose(self, queries: IndexQueries, keys: torch.Tensor, choosing: Choosing) -> torch.Tensor:
        """The positions with the greatest sums over heads of weight * ReLU(query * key): int32 [choosing, most].

        Args:
            keys: the layer's cache of keys.
        """
        found = [
            self._scores(queries, keys, choosing, part).topk(self.most, dim=1, sorted=False).indices
            for part in self._slices(choosing, queries.query.shape[1])
        ]  # fmt: skip
        return torch.cat(found).int()

    def attend(
        self, query: torch.Tensor, chosen: torch.Tensor, cache: torch.Tensor, choosing: Choosing,
        options: AttentionOptions,
    ) -> torch.Tensor:  # fmt: skip
        """Attends to chosen positions: [choosing, heads, head_dim] → the same shape.

        Args:
            chosen: int32 [choosing, most]
            cache: the layer's cache of vectors, with the new tokens' already written.
        """
        scale = self.attention.scales_of(options).key
        output = self._attend(query, chosen, cache, choosing, options.scale * scale, options.sinks)
        return output if scale == 1.0 else output * scale

    def _score_bytes(self, heads: int) -> int:
        return 4

    @abstractmethod
    def _scores(self, queries: IndexQueries, keys: torch.Tensor, choosing: Choosing, part: slice) -> torch.Tensor:
        """Scores [queries, positions] of some choosing queries; minus infinity for positions that one does not see."""

    @abstractmethod
    def _attend(
        self, query: torch.Tensor, chosen: torch.Tensor, cache: torch.Tensor, choosing: Choosing, scale: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Like `attend`, without scales of the cache; `scale` is the factor on scores, see AttentionOptions."""


class TorchChosenAttention(ChosenAttention):
    """By torch's operators, sequence by sequence."""

    def _score_bytes(self, heads: int) -> int:
        return 4 * (heads + 1)

    def _scores(self, queries: IndexQueries, keys: torch.Tensor, choosing: Choosing, part: slice) -> torch.Tensor:
        query, weights = queries.query[part], queries.weights[part]
        wide = torch.promote_types(query.dtype, torch.float32)
        found = torch.full((len(query), choosing.longest), -torch.inf, dtype=wide, device=query.device)
        cells = self.keys.vectors(keys)
        for sequence, first, end, seq_len in choosing.spans:
            own = slice(max(first, part.start) - part.start, min(end, part.stop) - part.start)
            if own.start >= own.stop:
                continue
            known = known_keys(cells, choosing.metadata.block_table[sequence], seq_len)
            sums = weighted_scores(query[own], weights[own], known)
            places = torch.arange(seq_len, device=query.device)
            hidden = places > choosing.positions[part][own, None]
            found[own, :seq_len] = sums.masked_fill_(hidden, -torch.inf)
        return found

    def _attend(
        self, query: torch.Tensor, chosen: torch.Tensor, cache: torch.Tensor, choosing: Choosing, scale: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        cells, output = self.attention.vectors(cache), torch.empty_like(query)
        size = max(1, PART_BYTES // (self.most * query.shape[2] * query.dtype.itemsize))
        for first in range(0, len(query), size):
            part = slice(first, first + size)
            blocks, places = places_of(chosen[part], choosing.sequences[part], choosing.metadata, cells.shape[1])
            vectors = take(cells, (blocks, places)).to(query.dtype)  # [queries, most, head_dim]
            scores = (query[part] @ vectors.transpose(1, 2)) * scale
            wide = torch.promote_types(query.dtype, torch.float32)
            shares, _ = softmax_with_sinks(scores.to(wide), None if sinks is None else sinks[:, None])
            output[part] = shares.to(query.dtype) @ vectors
        return output


def weighted_scores(query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Sums over heads of weight * ReLU(query * key): at least float32 [queries, keys].

    Args:
        query: [queries, heads, key_dim]
        weights: [queries, heads]
        keys: [keys, key_dim] for all queries, or [queries, keys, key_dim], of any dtype.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ keys.to(wide).transpose(-1, -2)).relu_()  # [queries, heads, keys]
    return (weights[:, None].to(wide) @ scores)[:, 0]


def take(cells: torch.Tensor, at: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Takes entries, of any dtype."""
    return bits(cells)[at].view(cells.dtype)


def known_keys(cells: torch.Tensor, block_table: torch.Tensor, seq_len: int) -> torch.Tensor:
    """The keys of a sequence: [seq_len, key_dim].

    Args:
        cells: [num_blocks, block_size, key_dim]
        block_table: int32 [blocks], of the sequence.
    """
    blocks = block_table[: -(-seq_len // cells.shape[1])].long()
    return take(cells, (blocks,)).flatten(0, 1)[:seq_len]


def places_of(
    chosen: torch.Tensor, sequences: torch.Tensor, metadata: AttentionMetadata, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of chosen positions [queries, ...], and places in them."""
    positions = chosen.long()
    rows = sequences.long().view(-1, *(1,) * (chosen.dim() - 1))
    return metadata.block_table[rows, positions // block_size].long(), positions % block_size


def _over(values: torch.Tensor, scale: float) -> torch.Tensor:
    return values if scale == 1.0 else values / scale


def _ranges(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`counts` consecutive numbers from each start on, one range behind the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
