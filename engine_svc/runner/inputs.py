"""Inputs of steps in buffers that stay where they are, for what is recorded once and reads them in each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from engine_svc.attention.base import AttentionMetadata
from engine_svc.recurrence.base import StateMetadata
from engine_svc.runner.batch import FlatBatch


class Shape(NamedTuple):
    """What a recording is for."""

    sequences: int
    tokens: int  # new ones of all sequences
    query_len: int  # of one, at most
    context: int  # of one with those before, at most on average
    has_adapters: bool = False  # some rows run with adapters, which may be any


class Inputs(NamedTuple):
    """What a forward pass reads."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    metadata: list[AttentionMetadata]
    states: StateMetadata
    received: torch.Tensor | None = None  # of the stage before


class Room(NamedTuple):
    """What buffers hold at most."""

    sequences: int
    tokens: int
    blocks: int  # of a sequence
    groups: int  # of layers, with tables of their own
    received: int = 0  # values that a stage before gives for each token; 0 in the first
    dtype: torch.dtype = torch.float32  # of these


class InputBuffers:
    """Where a step does not fill them, there are sequences that have new tokens only, whose slots are none: such write
    nothing.

    Whatever else changes from step to step is one buffer more, and one line of `_sources`.
    """

    def __init__(self, room: Room, nobodys_slot: int, device: torch.device) -> None:
        """
        Args:
            nobodys_slot: of their states.
        """

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self._nobodys = nobodys_slot
        self._token_ids, self._positions = full(0, 2, room.tokens, dtype=torch.int64)
        self._seq_lens = full(1, room.sequences)
        self._query_start_loc = full(0, room.sequences + 1)
        self._counting = torch.arange(room.sequences + 1, dtype=torch.int32, device=device)
        self._block_tables = [full(0, room.sequences, room.blocks) for _ in range(room.groups)]
        self._slot_mappings = [full(-1, room.tokens, dtype=torch.int64) for _ in range(room.groups)]
        self._state_slots = full(nobodys_slot, room.sequences, dtype=torch.int64)
        self._is_fresh = full(True, room.sequences, dtype=torch.bool)
        self._received = full(0, room.tokens, room.received, dtype=room.dtype) if room.received else None

    def clear(self, shape: Shape) -> None:
        """Makes them full of sequences that write nothing."""
        self._fill_up(shape, 0, 0)
        self._seq_lens[: shape.sequences].fill_(shape.query_len)
        for slots in self._slot_mappings:
            slots.fill_(-1)

    def _fill_up(self, shape: Shape, sequences: int, tokens: int) -> None:
        """The places behind so many sequences and tokens are those of others."""
        starts = self._query_start_loc[sequences : shape.sequences + 1]
        torch.mul(self._counting[: len(starts)], shape.query_len, out=starts)
        starts += tokens

    def fill(self, batch: FlatBatch, shape: Shape) -> None:
        """Copies the batch; behind it come sequences that write nothing."""
        for buffer, values, size, rest in self._sources(batch, shape):
            buffer[: len(values)].copy_(values)
            if len(values) < size:
                buffer[len(values) : size].fill_(rest)
        self._query_start_loc[: len(batch.query_start)].copy_(batch.metadata[0].query_start_loc)
        if len(batch.slots) < shape.sequences:
            self._fill_up(shape, len(batch.slots), len(batch.token_ids))
        for table, each in zip(self._block_tables, batch.metadata, strict=True):
            table[: len(each.block_table), : each.block_table.shape[1]].copy_(each.block_table)

    def _sources(self, batch: FlatBatch, shape: Shape) -> Iterator[tuple[torch.Tensor, torch.Tensor, int, int]]:
        """Buffers, what the batch has for them, how far they are read, and what those have that write nothing."""
        yield self._token_ids, batch.token_ids, shape.tokens, 0
        yield self._positions, batch.positions, shape.tokens, 0
        yield self._seq_lens, batch.metadata[0].seq_lens, shape.sequences, shape.query_len
        yield self._state_slots, batch.states.slots, shape.sequences, self._nobodys
        yield self._is_fresh, batch.states.is_fresh, shape.sequences, True
        for buffer, each in zip(self._slot_mappings, batch.metadata, strict=True):
            yield buffer, each.slot_mapping, shape.tokens, -1
        if self._received is not None and batch.received is not None:
            yield self._received, batch.received, shape.tokens, 0

    def views(self, shape: Shape) -> Inputs:
        """What a pass of a shape reads, now and later."""
        sequences, tokens = shape.sequences, shape.tokens
        starts, lengths = self._query_start_loc[: sequences + 1], [shape.query_len] * sequences
        metadata = [
            AttentionMetadata(
                query_start_loc=starts, seq_lens=self._seq_lens[:sequences], block_table=table[:sequences],
                slot_mapping=slots[:tokens], query_lens_host=lengths, seq_lens_host=[shape.context] * sequences,
                max_query_len=shape.query_len, max_seq_len=shape.context,
            )
            for table, slots in zip(self._block_tables, self._slot_mappings, strict=True)
        ]  # fmt: skip
        states = StateMetadata(starts, self._state_slots[:sequences], self._is_fresh[:sequences], lengths)
        received = None if self._received is None else self._received[:tokens]
        return Inputs(self._token_ids[:tokens], self._positions[:tokens], metadata, states, received)

    @contextmanager
    def nobodys_states(self) -> Iterator[None]:
        """What runs inside changes no sequence's states."""
        slots = self._state_slots.clone()
        self._state_slots.fill_(self._nobodys)
        yield
        self._state_slots.copy_(slots)
