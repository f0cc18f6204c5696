"""Step inputs in buffers at fixed addresses, for passes that are recorded once and read them in each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from engine_svc.attention.base import AttentionMetadata, OutputRows
from engine_svc.recurrence.base import StateMetadata
from engine_svc.runner.batch import FlatBatch, Inputs


class Shape(NamedTuple):
    """The shape of the batches that a recording serves."""

    sequences: int
    tokens: int  # new tokens of all sequences
    query_len: int  # most new tokens of a sequence; 0 means any number
    context: int  # most tokens of a sequence, new ones included, on average over the batch
    has_adapters: bool = False  # rows may run with adapters, any of them
    outputs: int = 0  # number of output rows, if the last layer computes only these; 0 means that it computes all rows


class Room(NamedTuple):
    """Capacity of input buffers."""

    sequences: int
    tokens: int
    blocks: int  # per sequence
    groups: int  # groups of layers, each with its own block tables
    received: int = 0  # values per token received from the previous pipeline stage; 0 in the first stage
    dtype: torch.dtype = torch.float32  # of the received values
    has_state_targets: bool = False  # see StateMetadata.targets

    def received_buffer(self, device: torch.device) -> torch.Tensor | None:
        """A zeroed buffer for what the previous stage sends; None in the first stage."""
        size = self.tokens, self.received
        return torch.zeros(size, dtype=self.dtype, device=device) if self.received else None


class InputBuffers:
    """Input buffers of recorded steps on a CPU, one for each input; a step fills only as much as it needs.

    Any further input that changes from step to step takes one more buffer, and one more line in `_sources`.
    """

    def __init__(self, room: Room, nobodys_slot: int) -> None:
        """
        Args:
            nobodys_slot: the state slot that passes change while no step has filled the buffers.
        """

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype)

        self._token_ids, self._positions = full(0, 2, room.tokens, dtype=torch.int64)
        self._seq_lens = full(1, room.sequences)
        self._query_start_loc = full(0, room.sequences + 1)
        self._block_tables = [full(0, room.sequences, room.blocks) for _ in range(room.groups)]
        self._slot_mappings = [full(-1, room.tokens, dtype=torch.int64) for _ in range(room.groups)]
        self._state_slots = full(nobodys_slot, room.sequences, dtype=torch.int64)
        self._state_targets = full(-1, room.tokens, dtype=torch.int64) if room.has_state_targets else None
        self._is_fresh = full(True, room.sequences, dtype=torch.bool)
        self._received = room.received_buffer(torch.device("cpu"))
        self._output_rows = full(0, room.tokens, dtype=torch.int64)
        self._output_start = full(0, room.sequences + 1)

    def fill(self, batch: FlatBatch) -> None:
        """Copies the batch into the buffers."""
        for buffer, values in self._sources(batch):
            buffer[: len(values)].copy_(values)
        for table, each in zip(self._block_tables, batch.inputs.metadata, strict=True):
            table[: len(each.block_table), : each.block_table.shape[1]].copy_(each.block_table)

    def _sources(self, batch: FlatBatch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs of a buffer and the batch's values for it."""
        inputs = batch.inputs
        yield self._token_ids, inputs.token_ids
        yield self._positions, inputs.positions
        yield self._seq_lens, inputs.metadata[0].seq_lens
        yield self._query_start_loc, inputs.metadata[0].query_start_loc
        yield self._state_slots, inputs.states.slots
        yield self._is_fresh, inputs.states.is_fresh
        if self._state_targets is not None and inputs.states.targets is not None:
            yield self._state_targets, inputs.states.targets
        for buffer, each in zip(self._slot_mappings, inputs.metadata, strict=True):
            yield buffer, each.slot_mapping
        if self._received is not None and inputs.received is not None:
            yield self._received, inputs.received
        yield self._output_rows, torch.from_numpy(batch.output_rows)
        yield self._output_start, torch.from_numpy(batch.output_start)

    def views(self, shape: Shape) -> Inputs:
        """The parts of the buffers that a pass of a shape reads, when recorded and in every replay."""
        sequences, tokens = shape.sequences, shape.tokens
        starts, slots = self._query_start_loc[: sequences + 1], self._state_slots[:sequences]
        metadata, states = recorded_metadata(
            shape, starts, self._seq_lens[:sequences], [table[:sequences] for table in self._block_tables],
            [mapping[:tokens] for mapping in self._slot_mappings], slots, self._is_fresh[:sequences],
            None if self._state_targets is None else self._state_targets[:tokens],
        )  # fmt: skip
        received = None if self._received is None else self._received[:tokens]
        outputs = None
        if shape.outputs:
            rows, start = self._output_rows[: shape.outputs], self._output_start[: sequences + 1]
            outputs = OutputRows(rows, start, [shape.outputs] * sequences)
        return Inputs(self._token_ids[:tokens], self._positions[:tokens], metadata, states, received, outputs=outputs)


def recorded_metadata(
    shape: Shape, starts: torch.Tensor, seq_lens: torch.Tensor, tables: Iterable[torch.Tensor],
    mappings: Iterable[torch.Tensor], slots: torch.Tensor, is_fresh: torch.Tensor, targets: torch.Tensor | None,
    plan: torch.Tensor | None = None,
) -> tuple[list[AttentionMetadata], StateMetadata]:  # fmt: skip
    """Metadata of a recording. Its lengths on the host are the shape's upper bounds."""
    lengths = [shape.query_len] * shape.sequences
    metadata = [
        AttentionMetadata(
            query_start_loc=starts, seq_lens=seq_lens, block_table=table, slot_mapping=mapping,
            query_lens_host=lengths, seq_lens_host=[shape.context] * shape.sequences, plan=plan,
        )
        for table, mapping in zip(tables, mappings, strict=True)
    ]  # fmt: skip
    return metadata, StateMetadata(starts, slots, is_fresh, lengths, targets)
