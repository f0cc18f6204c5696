"""The contract of an attention backend."""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.context import ContextPart, SharedContext
from engine_svc.attention.rotation import Rotation
from engine_svc.native.library import Kernels

_Position = TypeVar("_Position", int, torch.Tensor)
_FAR = 1 << 30  # greater than any position


@dataclass(frozen=True)
class AttentionMetadata:
    """Which queries of a flat batch belong to which sequence, and where its keys and values are.

    Sequence i has `query_lens_host[i]` queries, at the last of its `seq_lens_host[i]` positions. All of its new tokens
    are queries, except in a last layer that computes output rows only (see OutputRows).
    """

    query_start_loc: torch.Tensor  # int32 [num_seqs + 1], prefix sums of the queries
    seq_lens: torch.Tensor  # int32 [num_seqs], computed and new tokens
    block_table: torch.Tensor  # int32 [num_seqs, max_blocks]; 0 past a sequence's blocks
    # int64 [num_tokens], block * block_size + offset of each new token; -1 for tokens that another rank caches.
    slot_mapping: torch.Tensor
    query_lens_host: list[int]  # on the host, so that backends need not synchronize
    seq_lens_host: list[int]  # the same; in a recording, the greatest sum of all lengths, in equal parts
    # int32 [plan_size], the backend's plan for a step of a recording that serves any query lengths; made on the host.
    plan: torch.Tensor | None = None


@dataclass(frozen=True)
class OutputRows:
    """The rows of a batch whose hidden states are needed: the last ones of each sequence, often only the very last.

    A model's last layer caches the keys and values of all tokens, but computes everything else for these rows alone.
    """

    rows: torch.Tensor  # int64 [num_outputs], ascending
    start_loc: torch.Tensor  # int32 [num_seqs + 1], prefix sums of each sequence's number of rows
    lens_host: list[int]  # each sequence's number of rows, at least 1

    def as_queries(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Metadata for a layer in which only these rows attend."""
        return dataclasses.replace(metadata, query_start_loc=self.start_loc, query_lens_host=self.lens_host)


@dataclass(frozen=True)
class AttentionShape:
    """Heads and KV cache of one rank, and requirements on the backend."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    keys_are_values: bool = False  # one tensor serves as both, and is cached once (compressed attention)
    cache_dtype: torch.dtype | None = None  # 8-bit dtype of cached keys and values; None means `dtype`
    batch_invariant: bool = False  # whether AttentionBackend.batch_invariant is required, even if it costs time
    part: ContextPart = ContextPart()  # the part of each sequence that is cached on this rank
    # Compressed attention: numbers of a head's plain key (without its rotated part) and value together, if prompts may
    # be attended to with them, see Expansion; 0 if not.
    expanded_dim: int = 0
    # Queries attend to at most so many positions, which their layer chooses, see SparseAttention; 0 means to all.
    most_chosen: int = 0

    @property
    def block_tokens(self) -> int:
        """Tokens of a sequence in a block, over all ranks that share its context."""
        return self.block_size * self.part.size

    @property
    def planes(self) -> int:
        """Number of cached tensors: 2 for keys and values, 1 if keys are values."""
        return 1 if self.keys_are_values else 2

    @property
    def row(self) -> int:
        """Cached numbers of each position and plane."""
        return self.num_kv_heads * self.head_dim

    @property
    def stored(self) -> torch.dtype:
        """The dtype of cached keys and values."""
        return self.cache_dtype or self.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of `row`."""
        return self.row * self.stored.itemsize


@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """Options of one layer's attention."""

    scale: float
    sliding_window: int | None = None  # a query at position p sees the keys at p - sliding_window + 1 … p
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    # [num_heads]: a score that takes part in each softmax but has no value (attention sinks, as in gpt-oss).
    sinks: torch.Tensor | None = None
    chunked: bool = False  # the window begins at the last multiple of its length instead (Llama 4)
    # A query also sees later positions: all of its sequence, or up to p + sliding_window - 1 (encoders).
    bidirectional: bool = False
    # float32 [heads that the backend attends with, including those of other ranks]: how much a score, after scaling and
    # capping, is lowered for each position between its query and its key (ALiBi, Press et al. 2021).
    slopes: torch.Tensor | None = None
    kind: int = 0  # of the layer, where layers differ in their heads or caches: see MixedBackend

    def first_seen(self, position: _Position) -> _Position:
        """The first position that a query at `position` sees; may be negative."""
        if self.sliding_window is None:
            return position * 0
        if self.chunked:
            return position // self.sliding_window * self.sliding_window
        return position - self.sliding_window + 1

    def seen_until(self, position: _Position) -> _Position:
        """One past the last position that a query at `position` sees; may be past the end of its sequence."""
        if not self.bidirectional:
            return position + 1
        return position * 0 + _FAR if self.sliding_window is None else position + self.sliding_window


@dataclass
class CacheScales:
    """Factors by which a layer's keys and values are divided before they are cached in 8 bits."""

    key: float = 1.0
    value: float = 1.0

    def observe(self, key: torch.Tensor, value: torch.Tensor, most: float) -> None:
        """Sets the scales so that twice the greatest of these values fits: with floats, headroom costs no precision."""
        self.key, self.value = (2 * max(float(tensor.abs().max()), 1e-6) / most for tensor in (key, value))


@dataclass(frozen=True)
class Prepared:
    """Metadata shared by the layers of a step; backends add what they derive from it, for their own use only."""

    metadata: AttentionMetadata
    parts: tuple[QueryPart, ...] = field(default=(), kw_only=True)  # if there are any, queries attend part by part
    expansion: Expansion | None = field(default=None, kw_only=True)  # None if the whole batch attends in one way


@dataclass(frozen=True)
class QueryPart:
    """Some queries of a batch, which attend in a way of their own."""

    rows: torch.Tensor  # int64 [part], their rows among the queries of the batch
    prepared: Prepared  # for a batch of these queries; caches keys and values of all new tokens, of the first part only
    bidirectional: bool  # see AttentionOptions


class ExpandVectors(Protocol):
    """Computes the plain keys and values of a rank's heads from cached vectors."""

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """[keys, head_dim] → [keys, num_heads, plain key and value], contiguous."""
        ...


@dataclass(frozen=True)
class Others:
    """The queries of a batch that attend to all cached vectors they see, beside others that attend in another way."""

    rows: torch.Tensor  # int64 [others], their rows among the queries of the batch
    prepared: Prepared  # for a batch of these queries; caches the vectors of all new tokens


@dataclass(frozen=True)
class Expansion(ABC):
    """Prompts of compressed attention that attend with plain keys and values of all heads; see expansion.py."""

    others: Others | None  # None if all queries of the batch are of these prompts

    @abstractmethod
    def attend(
        self, query: torch.Tensor, rotated: torch.Tensor, key: torch.Tensor, expand: ExpandVectors,
        cache: torch.Tensor, output: torch.Tensor, scale: float,
    ) -> None:  # fmt: skip
        """Attends to the cache. If there are `others`, they must attend first.

        Args:
            query: [num_queries, num_heads, plain_dim + rotated_dim], of which only the plain part is read.
            rotated: [num_queries, num_heads, rotated_dim], the other part, after rotation.
            key: [num_tokens, 1, head_dim], the vectors of all new tokens, which are cached.
            cache: this layer's cache.
            output: [num_queries, num_heads, value_dim], receives the results of the prompts.
            scale: factor on scores.
        """


class AttentionBackend(ABC):
    """Writes keys and values to the paged cache and attends to it. One instance per rank."""

    name: str
    block_dimension: int = 1  # the dimension of a layer's cache that counts blocks
    query_lens: tuple[int, ...] = (1,)  # one for each kernel path, except that of prompts; for warm-up
    is_recordable = True  # whether steps can be recorded as CUDA graphs
    records_calls = False  # whether it calls C++ kernels alone, which steps can record; see runner/native_calls.py

    def __init__(self, shape: AttentionShape, kernels: Kernels | None = None) -> None:
        """
        Args:
            kernels: the rank's CPU kernels; None means that they are not used.
        """
        self.shape = shape
        self.kernels = kernels
        self.context: SharedContext | None = None  # set if the shape caches only a part of each sequence
        self._scales: dict[AttentionOptions, CacheScales] | None = None
        self._observing = False

    @property
    def tails(self) -> tuple[tuple[int, int], ...]:
        """(new tokens, context length) of each further path that is only taken after long contexts; for warm-up."""
        return ()

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's result depends on its sequence alone.

        That is, neither on the batch's other sequences, nor on how many tokens of its own sequence are new with it.
        """
        return False

    @property
    def expands_heads(self) -> bool:
        """Whether `prepare` may find an Expansion."""
        return False

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """Allocates a cache for each layer, in the backend's own layout.

        Here it is [planes, num_blocks, block_size, num_kv_heads, head_dim].
        """
        return [self.carve(memory, 0) for memory in self.allocate_memory(num_blocks, num_layers, self.shape.row)]

    def allocate_memory(self, num_blocks: int, count: int, row: int) -> list[torch.Tensor]:
        """Allocates memory from which caches of layers with other heads, or of another dtype, can be carved, too.

        Args:
            row: numbers of each position and plane, which take a multiple of each layer's AttentionShape.row_bytes.

        Returns:
            Here [planes, num_blocks, block_size * row] each.
        """
        shape = self.shape
        size = (shape.planes, num_blocks, shape.block_size * row)
        return [torch.zeros(size, dtype=shape.stored, device=shape.device) for _ in range(count)]

    def carve(self, memory: torch.Tensor, index: int) -> torch.Tensor:
        """The cache of one of the layers that share this memory, as `allocate` describes it, with gaps between blocks.

        Args:
            memory: from `allocate_memory` of a backend of the same class, which may have another dtype.
            index: counts the layers with this backend's heads in the memory.
        """
        shape = self.shape
        size = shape.block_size * shape.row
        own = memory.view(shape.stored)[..., index * size : (index + 1) * size]
        return own.unflatten(-1, (shape.block_size, shape.num_kv_heads, shape.head_dim))

    def layers_per_cache(self, layer: int) -> int:
        """How many layers like this one share one of the caches that `allocate` returns."""
        return 1

    def itemsize(self, layer: int) -> int:
        """Bytes of each number that a layer caches."""
        return self.shape.stored.itemsize

    def caches_of(self, caches: Sequence[torch.Tensor], layers: Sequence[int]) -> list[torch.Tensor]:
        """The caches of the layers of a group, out of those that `allocate` returned."""
        return list(caches[: len(layers)])

    def most_positions(self, sequences: int, query_len: int = 1) -> int:
        """The most positions that all sequences of a recorded pass may have together.

        A recorded pass has room for the results of all sequences at once.

        Args:
            sequences: number of sequences in the pass.
            query_len: number of new tokens of each.
        """
        return sys.maxsize

    def decoding_bytes(self, sequences: int, positions: int) -> int:
        """Bytes that a pass takes in addition to its inputs and results.

        Args:
            sequences: number of sequences, each with few new tokens.
            positions: of all sequences together.
        """
        return 0

    def plan_size(self, sequences: int, tokens: int) -> int:
        """Size of the array that `plan` returns for a pass of at most `sequences` sequences and `tokens` new tokens.

        0 means that only passes whose sequences all have the same number of new tokens can be recorded.
        """
        return 0

    def plan(
        self, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64], sequences: int, tokens: int
    ) -> npt.NDArray[np.int32] | None:
        """What a recorded pass, of at most `sequences` sequences and `tokens` new tokens, must know of a batch.

        None means that the batch is better computed without the recording.
        """
        return None

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """Called once per step to prepare what its layers share; once per recording if the metadata has a plan."""

    def prepare_for(self, layers: Sequence[int], metadata: AttentionMetadata) -> Prepared:
        """Like `prepare`, for these layers alone, which are of the same kind."""
        return self.prepare(metadata)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Like `attend`, but keys and values are divided by their scales before they are cached, if there are scales.

        Args:
            options: must be the same object in each call of a layer.
        """
        if self._scales is None:
            return self._attend_all(query, key, value, cache, prepared, options)
        scales = self.scales_of(options)
        if self._observing and len(key):
            scales.observe(key, value, torch.finfo(self.shape.stored).max)
        scaled = dataclasses.replace(options, scale=options.scale * scales.key)
        divided = key / scales.key, value / scales.value
        return self._attend_all(query, *divided, cache, prepared, scaled) * scales.value

    def rotate_and_forward(
        self,
        heads: torch.Tensor,
        rotation: Rotation,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Like `forward`, for queries and keys that have not been rotated yet.

        Args:
            heads: [num_tokens, all heads, head_dim], queries, keys and values side by side; may be changed in place.
        """
        turning = heads.shape[1] - self.shape.num_kv_heads
        query_key, value = heads.split((turning, self.shape.num_kv_heads), dim=1)
        query, key = rotation(query_key).split((rotation.num_query, turning - rotation.num_query), dim=1)
        return self.forward(rotation.queries(query), key, value, cache, prepared, options)

    def _attend_all(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Attends to whole sequences, together with the ranks that cache their other parts, if there are any."""
        if self.context is None:
            return self._attend_parts(query, key, value, cache, prepared, options)
        queries = self.context.gather(query)
        lse = queries.new_empty(queries.shape[:2], dtype=torch.float32)
        without = dataclasses.replace(options, sinks=None)  # sinks count only once, when all parts are merged
        output = self._attend_parts(queries, key, value, cache, prepared, without, lse)
        return self.context.merge(output, lse, options.sinks)

    def _attend_parts(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, prepared: Prepared,
        options: AttentionOptions, lse: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Like `attend`, if need be part by part."""
        if not prepared.parts:
            return self.attend(query, key, value, cache, prepared, options, lse)
        output = torch.empty_like(query)
        for part in prepared.parts:
            own = dataclasses.replace(options, bidirectional=part.bidirectional)
            own_lse = None if lse is None else lse[part.rows]
            output[part.rows] = self.attend(query[part.rows], key, value, cache, part.prepared, own, own_lse)
            if lse is not None and own_lse is not None:
                lse[part.rows] = own_lse
            key, value = key[:0], value[:0]
        return output

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Writes keys and values [tokens, num_kv_heads, head_dim] to their slots, as they are.

        Args:
            cache, slot_mapping: see `attend`, and AttentionMetadata.
        """
        raise NotImplementedError

    def vectors(self, cache: torch.Tensor) -> torch.Tensor:
        """A view of the cached vectors, [num_blocks, block_size, head_dim], where one head's keys are the values."""
        return self.heads(cache)[0, 0]

    def heads(self, cache: torch.Tensor) -> torch.Tensor:
        """A view of a cache: [planes, num_kv_heads, num_blocks, block_size, head_dim]."""
        return cache.permute(0, 3, 1, 2, 4)

    def scales_of(self, options: AttentionOptions) -> CacheScales:
        """The scales of a layer's cached keys and values."""
        return CacheScales() if self._scales is None else self._scales.setdefault(options, CacheScales())

    def use_scales(self, options: AttentionOptions, scales: CacheScales) -> None:
        """Divides a layer's keys and values by these scales before caching them, from now on.

        Args:
            options: the layer's own options object.
        """
        if self._scales is None:
            self._scales = {}
        self._scales[options] = scales

    @contextmanager
    def calculate_scales(self) -> Iterator[None]:
        """Context in which passes measure the magnitudes of keys and values, whose scales are used from then on."""
        self._scales, self._observing = {}, True
        yield
        self._observing = False

    @abstractmethod
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
        """Writes the new keys and values to the cache, then attends: causally, or as the options say.

        The result does not depend on cache contents that a sequence has not written or that its window has passed, even
        if they are infinite or NaN.

        Args:
            query: [num_queries, num_heads, head_dim], as many queries as the metadata says.
            key, value: [num_tokens, num_kv_heads, head_dim], of all new tokens, or empty if they are cached already;
                the same tensor if keys are values.
            cache: this layer's cache, from `allocate`.
            prepared: from `prepare`.
            lse: float32 [num_queries, num_heads], receives the logarithm of each query's sum of exponentiated scores.
                For a query that sees none of the positions cached here, it is minus infinity, and the output is 0.

        Returns:
            [num_queries, num_heads, head_dim]
        """

    def bytes_per_block(self, num_layers: int) -> int:
        """Bytes of one block's keys and values over all caches that `allocate` returns for so many layers."""
        shape = self.shape
        return shape.planes * num_layers * shape.block_size * shape.row_bytes


def first_key(query_len: int, seq_len: int, options: AttentionOptions) -> int:
    """The first position seen by any of a sequence's new queries, which are at its last positions.

    Blocks before it may belong to other sequences by now and hold anything, so they must not enter a sum even with a
    weight of 0.
    """
    return max(0, options.first_seen(seq_len - query_len))
