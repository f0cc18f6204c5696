"""A step's sequences as model inputs: a flat batch, with each sequence in consecutive cache blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionMetadata
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.pooling_plan import PooledSequence
from engine_svc.transfer import to_device

Integers = npt.NDArray[Any]


class Inputs(NamedTuple):
    """The inputs of a forward pass: int64 [tokens] each, and the attention metadata."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    types: torch.Tensor
    metadata: AttentionMetadata


@dataclass(frozen=True)
class FlatBatch:
    """A batch of whole sequences, of which nothing is cached yet."""

    lengths: list[int]
    starts: Integers  # int32 [sequences + 1], where each sequence's tokens begin
    token_ids: Integers  # int64 [tokens], like the next three
    positions: Integers
    types: Integers
    slots: Integers
    block_table: Integers  # int32 [sequences, most blocks of any sequence]
    embedded: EmbeddedRows | None = None  # rows that are embeddings of images

    @classmethod
    def of(cls, sequences: Sequence[PooledSequence], block_size: int) -> FlatBatch:
        """Creates a batch of sequences, each with at least one token."""
        lengths = [len(each.token_ids) for each in sequences]
        counts = np.asarray(lengths, dtype=np.int64)
        starts = np.concatenate(([0], np.cumsum(counts)))
        token_ids = np.concatenate([np.asarray(each.token_ids, dtype=np.int64) for each in sequences])
        types = np.zeros_like(token_ids)
        for start, each in zip(starts.tolist(), sequences, strict=False):
            if each.token_type_ids:
                types[start : start + len(each.token_ids)] = each.token_type_ids
        blocks = -(-counts // block_size)
        first = np.cumsum(blocks) - blocks
        positions = np.arange(len(token_ids)) - np.repeat(starts[:-1], counts)
        columns = np.arange(blocks.max())
        table = np.where(columns < blocks[:, None], first[:, None] + columns, 0)
        return cls(
            lengths, starts.astype(np.int32), token_ids, positions, types,
            np.repeat(first * block_size, counts) + positions, table.astype(np.int32),
        )  # fmt: skip

    def inputs(self, device: torch.device) -> Inputs:
        """The batch on the device; on a CPU, tensors share the arrays' memory."""

        def there(values: Integers) -> torch.Tensor:
            return to_device(values, device)

        metadata = AttentionMetadata(
            query_start_loc=there(self.starts), seq_lens=there(np.diff(self.starts)),
            block_table=there(self.block_table), slot_mapping=there(self.slots), query_lens_host=self.lengths,
            seq_lens_host=self.lengths,
        )  # fmt: skip
        return Inputs(there(self.token_ids), there(self.positions), there(self.types), metadata)


class Room(NamedTuple):
    """The capacity of a step."""

    sequences: int
    tokens: int
    blocks: int  # per sequence


class InputBuffers:
    """Input buffers at fixed addresses, on the CPU."""

    def __init__(self, room: Room) -> None:
        self._room = room
        # Token ids, positions, types, slots.
        self._of_tokens = torch.zeros((4, room.tokens), dtype=torch.int64)
        self._starts = torch.zeros(room.sequences + 1, dtype=torch.int32)
        self._lengths = torch.zeros(room.sequences, dtype=torch.int32)
        self._block_table = torch.zeros((room.sequences, room.blocks), dtype=torch.int32)

    def fits(self, batch: FlatBatch) -> bool:
        """Whether a batch fits in the buffers."""
        return (
            batch.embedded is None
            and len(batch.token_ids) <= self._room.tokens
            and len(batch.lengths) <= self._room.sequences
        )

    def fill(self, batch: FlatBatch) -> None:
        """Copies a batch that fits to the buffers."""
        sequences, tokens = len(batch.lengths), len(batch.token_ids)
        for buffer, values in zip(
            self._of_tokens.numpy(), (batch.token_ids, batch.positions, batch.types, batch.slots), strict=True
        ):
            buffer[:tokens] = values
        self._starts.numpy()[: sequences + 1] = batch.starts
        self._lengths.numpy()[:sequences] = batch.lengths
        self._block_table.numpy()[:sequences, : batch.block_table.shape[1]] = batch.block_table

    def views(self, sequences: int, tokens: int) -> Inputs:
        """The inputs of a pass over this many sequences and tokens."""
        longest = tokens - sequences + 1
        token_ids, positions, types, slots = self._of_tokens[:, :tokens]
        metadata = AttentionMetadata(
            query_start_loc=self._starts[: sequences + 1], seq_lens=self._lengths[:sequences],
            block_table=self._block_table[:sequences], slot_mapping=slots, query_lens_host=[longest] * sequences,
            seq_lens_host=[longest] * sequences,
        )  # fmt: skip
        return Inputs(token_ids, positions, types, metadata)
