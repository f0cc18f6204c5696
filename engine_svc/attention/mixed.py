"""Attention of models whose layers differ in their heads or in how they cache keys and values.

Those with a sliding window have other heads than the rest (Gemma 4, MiMo V2, Step 3.5), or single ones have (Llama
Nemotron); or some keep the model's dtype while others cache 8 bits (--kv-cache-dtype-skip-layers).

Each kind of layer has a backend of its own. All carve their layers' caches out of the same memory, whose rows are a
common multiple of theirs: where one kind's heads take half the room, two of its layers share the memory of one of the
other kind. So a block of the pool serves any group of layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    CacheScales,
    Prepared,
)
from engine_svc.attention.rotation import Rotation


class MixedBackend(AttentionBackend):
    """Leaves each layer's attention to the backend for its kind."""

    def __init__(self, kinds: Sequence[AttentionBackend], kind_of: Mapping[int, int]) -> None:
        """
        Args:
            kinds: backends of the same class, numbered as in AttentionOptions.
            kind_of: the kind of each layer.
        """
        self._first = first = kinds[0]
        super().__init__(first.shape, first.kernels)
        self._kinds, self._kind_of = kinds, kind_of
        self._row_bytes = math.lcm(*(each.shape.row_bytes for each in kinds))
        self.name = first.name
        self.block_dimension = first.block_dimension
        self.query_lens, self.records_calls = first.query_lens, first.records_calls

    @property
    def tails(self) -> tuple[tuple[int, int], ...]:
        """See AttentionBackend.tails."""
        return tuple(dict.fromkeys(tail for each in self._kinds for tail in each.tails))

    @property
    def batch_invariant(self) -> bool:
        """See AttentionBackend.batch_invariant."""
        return all(each.batch_invariant for each in self._kinds)

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate; this is the memory, see `caches_of`."""
        row = self._row_bytes // self._first.shape.stored.itemsize
        return self._first.allocate_memory(num_blocks, num_layers, row)

    def layers_per_cache(self, layer: int) -> int:
        """See AttentionBackend.layers_per_cache."""
        return self._row_bytes // self._of_layer(layer).shape.row_bytes

    def itemsize(self, layer: int) -> int:
        """See AttentionBackend.itemsize."""
        return self._of_layer(layer).itemsize(layer)

    def caches_of(self, caches: Sequence[torch.Tensor], layers: Sequence[int]) -> list[torch.Tensor]:
        """See AttentionBackend.caches_of; all layers of a group are of the same kind."""
        if not layers:
            return []
        kind, count = self._of_layer(layers[0]), self.layers_per_cache(layers[0])
        return [kind.carve(caches[index // count], index % count) for index in range(len(layers))]

    def _of_layer(self, layer: int) -> AttentionBackend:
        return self._kinds[self._kind_of[layer]]

    def bytes_per_block(self, num_layers: int) -> int:
        """See AttentionBackend.bytes_per_block."""
        own = self._first
        return own.bytes_per_block(num_layers) // own.shape.row_bytes * self._row_bytes

    def most_positions(self, sequences: int, query_len: int = 1) -> int:
        """See AttentionBackend.most_positions."""
        return min(each.most_positions(sequences, query_len) for each in self._kinds)

    def decoding_bytes(self, sequences: int, positions: int) -> int:
        """See AttentionBackend.decoding_bytes."""
        return max(each.decoding_bytes(sequences, positions) for each in self._kinds)

    def plan_size(self, sequences: int, tokens: int) -> int:
        """See AttentionBackend.plan_size; the plans of both kinds, one behind the other."""
        return sum(each.plan_size(sequences, tokens) for each in self._kinds)

    def plan(
        self, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64], sequences: int, tokens: int
    ) -> npt.NDArray[np.int32] | None:
        """See AttentionBackend.plan."""
        plans = [each.plan(query_lens, seq_lens, sequences, tokens) for each in self._kinds]
        found = [plan for plan in plans if plan is not None]
        return np.concatenate(found) if len(found) == len(plans) else None

    def prepare_for(self, layers: Sequence[int], metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare_for."""
        kind = self._kind_of[layers[0]]
        if metadata.plan is not None:
            sequences, tokens = len(metadata.seq_lens_host), len(metadata.slot_mapping)
            plans = metadata.plan.split([each.plan_size(sequences, tokens) for each in self._kinds])
            metadata = replace(metadata, plan=plans[kind])
        return self._kinds[kind].prepare(metadata)

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """
        Raises:
            TypeError: always, because it depends on the layers; see `prepare_for`.
        """
        raise TypeError("layers of different kinds are prepared separately")

    def _of(self, options: AttentionOptions) -> AttentionBackend:
        return self._kinds[options.kind]

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend.forward."""
        return self._of(options).forward(query, key, value, cache, prepared, options)

    def rotate_and_forward(
        self,
        heads: torch.Tensor,
        rotation: Rotation,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend.rotate_and_forward."""
        return self._of(options).rotate_and_forward(heads, rotation, cache, prepared, options)

    def use_scales(self, options: AttentionOptions, scales: CacheScales) -> None:
        """See AttentionBackend.use_scales; a layer that caches in the model's dtype has none."""
        if self._of(options).shape.cache_dtype is not None:
            self._of(options).use_scales(options, scales)

    @contextmanager
    def calculate_scales(self) -> Iterator[None]:
        """See AttentionBackend.calculate_scales."""
        with ExitStack() as stack:
            for each in self._kinds:
                if each.shape.cache_dtype is not None:
                    stack.enter_context(each.calculate_scales())
            yield

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
        return self._of(options).attend(query, key, value, cache, prepared, options, lse)
