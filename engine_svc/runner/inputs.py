"""Inputs of steps in buffers that stay where they are, for what is recorded once and reads them in each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from engine_svc.attention.base import AttentionMetadata, OutputRows
from engine_svc.recurrence.base import StateMetadata
from engine_svc.runner.batch import FlatBatch, Inputs


class Shape(NamedTuple):
    """What a recording is for."""

    sequences: int
    tokens: int  # new ones of all sequences
    query_len: int  # of one, at most; 0: any
    context: int  # of one with those before, at most on average
    has_adapters: bool = False  # some rows run with adapters, which may be any
    outputs: int = 0  # output rows of a recording that computes these alone in its last layer; 0: it has all rows


class Room(NamedTuple):
    """What buffers hold at most."""

    sequences: int
    tokens: int
    blocks: int  # of a sequence
    groups: int  # of layers, with tables of their own
    received: int = 0  # values that a stage before gives for each token; 0 in the first
    dtype: torch.dtype = torch.float32  # of these

    def received_buffer(self, device: torch.device) -> torch.Tensor | None:
        """For what the stage before gives; None in the first."""
        size = self.tokens, self.received
        return torch.zeros(size, dtype=self.dtype, device=device) if self.received else None


class InputBuffers:
    """On a CPU, one for each of a step's inputs, which are as many as the step has.

    Whatever else changes from step to step is one buffer more, and one line of `_sources`.
    """

    def __init__(self, room: Room, nobodys_slot: int) -> None:
        """
        Args:
            nobodys_slot: of states, which passes change that no step has filled these for.
        """

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype)

        self._token_ids, self._positions = full(0, 2, room.tokens, dtype=torch.int64)
        self._seq_lens = full(1, room.sequences)
        self._query_start_loc = full(0, room.sequences + 1)
        self._block_tables = [full(0, room.sequences, room.blocks) for _ in range(room.groups)]
        self._slot_mappings = [full(-1, room.tokens, dtype=torch.int64) for _ in range(room.groups)]
        self._state_slots = full(nobodys_slot, room.sequences, dtype=torch.int64)
        self._is_fresh = full(True, room.sequences, dtype=torch.bool)
        self._received = room.received_buffer(torch.device("cpu"))
        self._output_rows = full(0, room.tokens, dtype=torch.int64)
        self._output_start = full(0, room.sequences + 1)

    def fill(self, batch: FlatBatch) -> None:
        """Copies the batch."""
        for buffer, values in self._sources(batch):
            buffer[: len(values)].copy_(values)
        for table, each in zip(self._block_tables, batch.inputs.metadata, strict=True):
            table[: len(each.block_table), : each.block_table.shape[1]].copy_(each.block_table)

    def _sources(self, batch: FlatBatch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Buffers, and what a batch has for them."""
        inputs = batch.inputs
        yield self._token_ids, inputs.token_ids
        yield self._positions, inputs.positions
        yield self._seq_lens, inputs.metadata[0].seq_lens
        yield self._query_start_loc, inputs.metadata[0].query_start_loc
        yield self._state_slots, inputs.states.slots
        yield self._is_fresh, inputs.states.is_fresh
        for buffer, each in zip(self._slot_mappings, inputs.metadata, strict=True):
            yield buffer, each.slot_mapping
        if self._received is not None and inputs.received is not None:
            yield self._received, inputs.received
        yield self._output_rows, torch.from_numpy(batch.output_rows)
        yield self._output_start, torch.from_numpy(batch.output_start)

    def views(self, shape: Shape) -> Inputs:
        """What a pass of a shape reads, now and later."""
        sequences, tokens = shape.sequences, shape.tokens
        starts, slots = self._query_start_loc[: sequences + 1], self._state_slots[:sequences]
        metadata, states = recorded_metadata(
            shape, starts, self._seq_lens[:sequences], [table[:sequences] for table in self._block_tables],
            [mapping[:tokens] for mapping in self._slot_mappings], slots, self._is_fresh[:sequences],
        )  # fmt: skip
        received = None if self._received is None else self._received[:tokens]
        outputs = None
        if shape.outputs:
            rows, start = self._output_rows[: shape.outputs], self._output_start[: sequences + 1]
            outputs = OutputRows(rows, start, [shape.outputs] * sequences)
        return Inputs(self._token_ids[:tokens], self._positions[:tokens], metadata, states, received, outputs=outputs)


def recorded_metadata(
    shape: Shape, starts: torch.Tensor, seq_lens: torch.Tensor, tables: Iterable[torch.Tensor],
    mappings: Iterable[torch.Tensor], slots: torch.Tensor, is_fresh: torch.Tensor, plan: torch.Tensor | None = None,
) -> tuple[list[AttentionMetadata], StateMetadata]:  # fmt: skip
    """Of a recording, whose sequences have as many tokens as the shape says, at most."""
    lengths = [shape.query_len] * shape.sequences
    metadata = [
        AttentionMetadata(
            query_start_loc=starts, seq_lens=seq_lens, block_table=table, slot_mapping=mapping,
            query_lens_host=lengths, seq_lens_host=[shape.context] * shape.sequences, plan=plan,
        )
        for table, mapping in zip(tables, mappings, strict=True)
    ]  # fmt: skip
    return metadata, StateMetadata(starts, slots, is_fresh, lengths)
