"""The contract of an attention backend."""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.context import ContextPart, SharedContext
from engine_svc.native.library import Kernels
from engine_svc.ops.base import HeadNorms, Ops
from engine_svc.transfer import to_device, to_host

_Position = TypeVar("_Position", int, torch.Tensor)
_FAR = 1 << 30  # behind any position


@dataclass(frozen=True)
class AttentionMetadata:
    """Which queries of a flat batch belong to which sequence, and where its keys and values live.

    Sequence i has `query_lens_host[i]` queries, at the last positions of its `seq_lens_host[i]`. All of its new tokens
    are queries, except in a last layer that computes output rows only (see OutputRows).
    """

    query_start_loc: torch.Tensor  # int32 [num_seqs + 1], prefix sums of the queries
    seq_lens: torch.Tensor  # int32 [num_seqs], computed and new tokens
    block_table: torch.Tensor  # int32 [num_seqs, max_blocks]; 0 past a sequence's blocks
    # int64 [num_tokens], block * block_size + offset of each new token; -1 of those that another rank caches.
    slot_mapping: torch.Tensor
    query_lens_host: list[int]  # the same on the host, so that backends need not synchronise
    seq_lens_host: list[int]  # in what is recorded: the most that they come to together, in equal parts
    # int32 [plan_size], what the backend plans on the host for each step of a recording that is of any batch.
    plan: torch.Tensor | None = None


@dataclass(frozen=True)
class OutputRows:
    """The rows of a batch whose hidden states are needed: the last ones of each sequence, often only the last.

    A model's last layer caches the keys and values of all tokens, and computes everything else for these rows alone.
    """

    rows: torch.Tensor  # int64 [num_outputs], ascending
    start_loc: torch.Tensor  # int32 [num_seqs + 1], prefix sums of each sequence's number of rows
    lens_host: list[int]  # these numbers; each is at least 1

    def as_queries(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Metadata for a layer in which only these rows attend."""
        return dataclasses.replace(metadata, query_start_loc=self.start_loc, query_lens_host=self.lens_host)


@dataclass(frozen=True)
class AttentionShape:
    """Heads and cache of one rank, and what they are to keep to."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    keys_are_values: bool = False  # one tensor is both, and cached once (compressed attention)
    cache_dtype: torch.dtype | None = None  # of cached keys and values, where it is not `dtype`: 8 bits
    batch_invariant: bool = False  # see AttentionBackend.batch_invariant; asked for even if it costs time
    part: ContextPart = ContextPart()  # of each sequence, that is cached here

    @property
    def block_tokens(self) -> int:
        """Tokens of a sequence that a block stands for, on all ranks that share its context."""
        return self.block_size * self.part.size

    @property
    def planes(self) -> int:
        """Tensors that are cached: keys and values, or keys that are values too."""
        return 1 if self.keys_are_values else 2

    @property
    def stored(self) -> torch.dtype:
        """The type of cached keys and values."""
        return self.cache_dtype or self.dtype


@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """What a layer's attention is like."""

    scale: float
    sliding_window: int | None = None  # a query at position p sees the keys at p - sliding_window + 1 … p
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    # [num_heads]: a score that takes its part of each softmax and gives nothing (attention sinks, as in gpt-oss).
    sinks: torch.Tensor | None = None
    chunked: bool = False  # the window begins at the last multiple of its length instead (Llama 4)
    # A query sees what comes after it too: all of its sequence, or p + sliding_window - 1 at most (encoders).
    bidirectional: bool = False
    # float32 [heads that the backend attends with, other ranks' among them]: a score, scaled and capped, is so much
    # lower for each position between its query and its key (ALiBi, Press et al. 2021).
    slopes: torch.Tensor | None = None

    def first_seen(self, position: _Position) -> _Position:
        """The first position that a query at this one sees; may be below 0."""
        if self.sliding_window is None:
            return position * 0
        if self.chunked:
            return position // self.sliding_window * self.sliding_window
        return position - self.sliding_window + 1

    def seen_until(self, position: _Position) -> _Position:
        """The first position behind what a query at this one sees; may be past the end of its sequence."""
        if not self.bidirectional:
            return position + 1
        return position * 0 + _FAR if self.sliding_window is None else position + self.sliding_window


@dataclass(frozen=True)
class Rotation:
    """Of query and key heads, and their norms before it; see Ops.rotate."""

    ops: Ops
    table_rows: torch.Tensor
    num_query: int
    norms: HeadNorms | None
    interleaved: bool = False
    norms_are_last: bool = False
    output_rows: torch.Tensor | None = None  # int64, tokens whose queries attend; None means all of them

    def queries(self, query: torch.Tensor) -> torch.Tensor:
        """[tokens, query heads, head_dim] -> the same of the tokens whose queries attend."""
        return query if self.output_rows is None else self.ops.take_rows(query, self.output_rows)

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Query and key heads [tokens, heads, head_dim], turned; may work in place."""
        rotate, of_heads = self.ops.rotate, (self.num_query, self.norms, self.interleaved)
        if not self.norms_are_last:
            return rotate(heads, self.table_rows, *of_heads)
        turned = rotate(heads, self.table_rows, self.num_query, None, self.interleaved)
        return rotate(turned, self.table_rows[..., :0], *of_heads)


@dataclass
class CacheScales:
    """What a layer's keys and values are divided by before they are cached in 8 bits."""

    key: float = 1.0
    value: float = 1.0

    def observe(self, key: torch.Tensor, value: torch.Tensor, most: float) -> None:
        """Makes room for twice as much as these. They are floating-point numbers: room costs no precision."""
        self.key, self.value = (2 * max(float(tensor.abs().max()), 1e-6) / most for tensor in (key, value))


@dataclass(frozen=True)
class Prepared:
    """What the layers of a step share; backends add what they have made of it. Only for the backend that made it."""

    metadata: AttentionMetadata


class AttentionBackend(ABC):
    """Writes keys and values to the paged cache and attends to it. One instance per rank."""

    name: ClassVar[str]
    block_dimension: ClassVar[int] = 1  # of a layer's cache
    query_lens: ClassVar[tuple[int, ...]] = (1,)  # of each kind that is attended to in a way of its own, but prompts
    # New tokens behind contexts that only so long ones have attended to in a way of their own, and how long.
    tails: ClassVar[tuple[tuple[int, int], ...]] = ()

    def __init__(self, shape: AttentionShape, kernels: Kernels | None = None) -> None:
        """
        Args:
            kernels: those of the rank's CPU, if they are to be used.
        """
        self.shape = shape
        self.kernels = kernels
        self.context: SharedContext | None = None  # where the shape has a part of each sequence
        self._scales: dict[AttentionOptions, CacheScales] | None = None
        self._observing = False

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's result depends on its sequence alone: not on those beside it, nor on how many tokens of its
        own are new with it."""
        return False

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """A cache for each layer, in the backend's own layout: here [planes, num_blocks, block_size, num_kv_heads,
        head_dim]."""
        shape = self.shape
        size = (shape.planes, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        return [torch.zeros(size, dtype=shape.stored, device=shape.device) for _ in range(num_layers)]

    def allocate_host(self, caches: Sequence[torch.Tensor], num_blocks: int) -> list[torch.Tensor]:
        """The caches' second tier in host memory: the same layout with other blocks.

        Raises:
            MemoryError: there is not so much.
        """
        found = []
        for cache in caches if num_blocks else ():
            shape = list(cache.shape)
            shape[self.block_dimension] = num_blocks
            try:
                found.append(torch.empty(shape, dtype=cache.dtype, pin_memory=cache.is_cuda))
            except RuntimeError as error:  # as torch has it, on the host
                size = num_blocks * sum(each.nbytes // each.shape[self.block_dimension] for each in caches)
                wanted = f"{size / 2**30:.1f} GiB of the host's for --swap-space"
                raise MemoryError(f"{wanted} cannot be had") from error
        return found

    def blocks_on_host(self, caches: Sequence[torch.Tensor], block_ids: Sequence[int]) -> list[torch.Tensor]:
        """Copies of blocks in every layer, as they are in the order of the device's stream; see `to_host`."""
        return [to_host(blocks) for blocks in self._taken(caches, block_ids)]

    def put_blocks(
        self, blocks: Iterable[torch.Tensor], caches: Sequence[torch.Tensor], block_ids: Sequence[int]
    ) -> None:
        """Copies such blocks, of every layer, to where they belong."""
        at = to_device(torch.tensor(block_ids, dtype=torch.int64), caches[0].device)
        for cache, moved in zip(caches, blocks, strict=True):
            bits(cache).index_copy_(self.block_dimension, at, to_device(moved, cache.device))

    def load_blocks(
        self, memory: Sequence[torch.Tensor], places: Sequence[int], caches: Sequence[torch.Tensor],
        block_ids: Sequence[int],
    ) -> None:  # fmt: skip
        """Copies blocks of host memory to a device's, in every layer, without waiting for it."""
        self.put_blocks(self._taken(memory, places), caches, block_ids)

    def _taken(self, caches: Sequence[torch.Tensor], block_ids: Sequence[int]) -> Iterator[torch.Tensor]:
        at = to_device(torch.tensor(block_ids, dtype=torch.int64), caches[0].device)
        return (bits(cache).index_select(self.block_dimension, at) for cache in caches)

    def most_positions(self, sequences: int, query_len: int = 1) -> int:
        """What so many sequences with so many new tokens each may have all together in a pass that is recorded: it has
        room for all of them at once."""
        return sys.maxsize

    def decoding_bytes(self, sequences: int, positions: int) -> int:
        """What a pass takes beside its inputs and results, of so many sequences with few new tokens, and so many
        positions all together."""
        return 0

    def plan_size(self, sequences: int, tokens: int) -> int:
        """Numbers that `plan` gives for a pass of so many sequences and new tokens; 0 where none can be recorded but of
        sequences that have as many new tokens each."""
        return 0

    def plan(
        self, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64], sequences: int, tokens: int
    ) -> npt.NDArray[np.int32] | None:
        """What a recorded pass of at most so many sequences and new tokens has to know of a batch; None where it is
        better computed by itself."""
        return None

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """Once per step: what the layers share. With a plan in it, for all batches of a recording."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """As `attend`, with keys and values cached over their scales where there are any.

        Args:
            options: the same object in each call of a layer.
        """
        if self._scales is None:
            return self._attend_all(query, key, value, cache, prepared, options)
        scales = self._scales.setdefault(options, CacheScales())
        if self._observing:
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
        """As `forward`, of queries and keys that are still to be rotated.

        Args:
            heads: [num_tokens, all heads, head_dim], of queries, keys and values side by side; may be changed.
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
        """Attends to whole sequences: with the ranks that cache the other parts of them, if there are any."""
        if self.context is None:
            return self.attend(query, key, value, cache, prepared, options)
        queries = self.context.gather(query)
        lse = queries.new_empty(queries.shape[:2], dtype=torch.float32)
        without = dataclasses.replace(options, sinks=None)  # they take their part once, of all parts together
        output = self.attend(queries, key, value, cache, prepared, without, lse)
        return self.context.merge(output, lse, options.sinks)

    def use_scales(self, options: AttentionOptions, scales: CacheScales) -> None:
        """A layer's keys and values are cached over these from now on.

        Args:
            options: the layer's own object.
        """
        if self._scales is None:
            self._scales = {}
        self._scales[options] = scales

    @contextmanager
    def calculate_scales(self) -> Iterator[None]:
        """What runs inside shows how great keys and values are; from then on, they are cached over their scales."""
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
        """Writes the new keys and values, then attends: causally, or as the options say.

        Whatever the cache holds where a sequence has written nothing, or what its windows have passed, changes nothing,
        be it infinite or not a number.

        Args:
            query: [num_queries, num_heads, head_dim], as many as the metadata says.
            key, value: [num_tokens, num_kv_heads, head_dim], of all new tokens; the same tensor if keys are values.
            cache: this layer's, of `allocate`.
            prepared: of `prepare`.
            lse: float32 [num_queries, num_heads], gets the logarithm of each query's sum of exponentiated scores. The
                result of one that sees none of the positions that are cached here is 0, and this minus infinity.

        Returns:
            [num_queries, num_heads, head_dim]
        """

    def bytes_per_block(self, num_layers: int) -> int:
        """Keys and values of one block over all layers."""
        shape = self.shape
        return (
            shape.planes * num_layers * shape.block_size * shape.num_kv_heads * shape.head_dim * shape.stored.itemsize
        )


def first_key(query_len: int, seq_len: int, options: AttentionOptions) -> int:
    """The first position that any of a sequence's new queries, its last positions, sees.

    Blocks before it may be others' by now, and hold anything: not even with a weight of 0 must they reach a sum.
    """
    return max(0, options.first_seen(seq_len - query_len))


def to_stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys or values as they are cached; in 8 bits, what is out of range becomes the greatest that is in it."""
    if tensor.dtype == dtype:
        return tensor
    most = torch.finfo(dtype).max
    return tensor.clamp(-most, most).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a type that torch can copy by index: it cannot all of its 8-bit types."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
