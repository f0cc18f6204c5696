"""Inputs of recorded steps on a GPU: a single buffer that is filled by one copy and read by a graph.

The buffer's layout depends only on the graph. Block tables, as wide as the longest sequence of the step, are at its
end. A graph begins by unpacking them into full-width tables and looking up the token ids.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.runner.batch import FlatBatch, HostInputs, Inputs
from engine_svc.runner.inputs import Room, Shape, recorded_metadata
from engine_svc.transfer import copy_to, packed_bytes, unpack


class _Parts(NamedTuple):
    """Parts of the buffer, laid out for a graph's shape: tensors on the device, or arrays on the host."""

    token_places: Any  # int64 [tokens]; -1 where the token id is in place already
    positions: Any  # int64 [tokens]
    slot_mappings: Any  # int64 [groups, tokens]
    state_slots: Any  # int64 [sequences]
    state_targets: Any  # int64 [tokens], or none
    query_start: Any  # int32 [sequences + 1]
    seq_lens: Any  # int32 [sequences]
    is_fresh: Any  # bool [sequences]
    table_size: Any  # int32 [2], number of real sequences, and columns of their block tables
    present: Any  # int32 [1], number of tokens of real sequences
    plan: Any  # int32 [any], the attention backend's plan, for shapes that take any query lengths


class GraphInputs:
    """Inputs of all graphs, with each batch padded to its graph's shape.

    Padding sequences have new tokens only, no context, and nothing of them is cached.
    """

    def __init__(self, room: Room, nobodys_slot: int, known: torch.Tensor, attention: AttentionBackend) -> None:
        """
        Args:
            room: sizes of the buffers.
            nobodys_slot: the state slot of padding sequences.
            known: int64, all slots' tokens, on the device.
            attention: makes the plan of each batch, for shapes that take any query lengths.
        """
        from engine_svc.kernels.step_inputs import unpack_inputs  # Triton is not installed everywhere

        self._unpack, self._room, self._nobodys, self._known = unpack_inputs, room, nobodys_slot, known
        self._attention = attention
        device = known.device
        tables = (room.groups, room.sequences, room.blocks)
        parts = _parts(room, room.sequences, room.tokens, attention.plan_size(room.sequences, room.tokens))
        size = packed_bytes(parts) + 4 * int(np.prod(tables))
        self._host = torch.zeros(size, dtype=torch.uint8)
        self._packed = torch.zeros(size, dtype=torch.uint8, device=device)
        self._cuts: dict[Shape, tuple[int, _Parts]] = {}  # offset of the block tables, and arrays on the host
        self._token_ids = torch.zeros(room.tokens, dtype=torch.int64, device=device)
        self._block_tables = torch.zeros(tables, dtype=torch.int32, device=device)
        self._received = room.received_buffer(device)

    def clear(self, shape: Shape) -> None:
        """Fills the inputs of a shape with padding sequences alone."""
        none, ids = np.zeros(0, np.int32), np.zeros(0, np.int64)
        groups = self._room.groups
        tables = [np.zeros((0, 0), np.int32)] * groups
        host = HostInputs(ids, ids, np.zeros(1, np.int32), none, ids, ids, ids.astype(bool), [ids] * groups, tables)
        self._fill(host, shape)

    def fill(self, batch: FlatBatch, shape: Shape) -> bool:
        """Copies the batch into the inputs; returns False if the batch should run without a graph instead."""
        host = batch.host
        if batch.token_ids is not None:
            self._token_ids[: batch.num_tokens].copy_(batch.token_ids)
            host = host._replace(token_places=np.full_like(host.token_places, -1))
        if self._received is not None and batch.received is not None:
            self._received[: batch.num_tokens].copy_(batch.received)
        return self._fill(host, shape)

    def _fill(self, host: HostInputs, shape: Shape) -> bool:
        if shape not in self._cuts:
            start, tensors = self._cut(self._host, shape)
            self._cuts[shape] = start, _Parts(*(part.numpy() for part in tensors))
        start, parts = self._cuts[shape]
        if not shape.query_len:
            lens, ends = np.diff(host.query_start).astype(np.int64), host.seq_lens.astype(np.int64)
            if (plan := self._attention.plan(lens, ends, shape.sequences, shape.tokens)) is None:
                return False
            parts.plan[:] = plan
        count, tokens = len(host.state_slots), len(host.positions)
        _put(parts.token_places, host.token_places, -1)
        _put(parts.positions, host.positions, 0)
        for mapping, values in zip(parts.slot_mappings, host.slot_mappings, strict=True):
            _put(mapping, values, -1)
        _put(parts.state_slots, host.state_slots, self._nobodys)
        if self._room.has_state_targets:
            _put(parts.state_targets, host.state_targets, -1)
        _put(parts.query_start[:count], host.query_start[:-1], 0)
        parts.query_start[count:] = tokens + np.arange(shape.sequences - count + 1) * shape.query_len
        _put(parts.seq_lens, host.seq_lens, shape.query_len)
        _put(parts.is_fresh, host.is_fresh, True)
        parts.table_size[:] = host.block_tables[0].shape
        parts.present[:] = tokens
        tables = np.concatenate(host.block_tables, axis=None)
        self._host[start : start + tables.nbytes].numpy().view(np.int32)[:] = tables
        copy_to(self._packed, self._host[: start + tables.nbytes])
        return True

    def _cut(self, buffer: torch.Tensor, shape: Shape) -> tuple[int, _Parts]:
        """The offset of the block tables in bytes, and views of the parts before them."""
        size = 0 if shape.query_len else self._attention.plan_size(shape.sequences, shape.tokens)
        parts = _parts(self._room, shape.sequences, shape.tokens, size)
        size = packed_bytes(parts)
        return size, _Parts(*unpack(buffer[:size], parts))

    def views(self, shape: Shape) -> Inputs:
        """The buffers that a pass of a shape reads, when recorded and in every replay."""
        _, parts = self._cut(self._packed, shape)
        metadata, states = recorded_metadata(
            shape, parts.query_start, parts.seq_lens, [table[: shape.sequences] for table in self._block_tables],
            parts.slot_mappings, parts.state_slots, parts.is_fresh,
            parts.state_targets if self._room.has_state_targets else None, None if shape.query_len else parts.plan,
        )  # fmt: skip
        received = None if self._received is None else self._received[: shape.tokens]
        return Inputs(self._token_ids[: shape.tokens], parts.positions, metadata, states, received, parts.present)

    def unpack(self, shape: Shape) -> None:
        """Unpacks block tables and token ids on the device, at the beginning of a pass."""
        start, parts = self._cut(self._packed, shape)
        tables = self._packed[start:].view(torch.int32)
        self._unpack(
            self._known, parts.token_places, self._token_ids, parts.table_size, tables, self._block_tables,
            shape.sequences,
        )  # fmt: skip


def _parts(room: Room, sequences: int, tokens: int, planned: int) -> _Parts:
    """Types and shapes of the parts, as meta tensors."""
    groups, targets = room.groups, tokens if room.has_state_targets else 0

    def part(dtype: torch.dtype, *size: int) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    return _Parts(
        part(torch.int64, tokens), part(torch.int64, tokens), part(torch.int64, groups, tokens),
        part(torch.int64, sequences), part(torch.int64, targets), part(torch.int32, sequences + 1),
        part(torch.int32, sequences), part(torch.bool, sequences), part(torch.int32, 2), part(torch.int32, 1),
        part(torch.int32, planned),
    )  # fmt: skip


def _put(array: npt.NDArray[Any], values: npt.NDArray[Any], rest: int) -> None:
    array[: len(values)] = values
    array[len(values) :] = rest
