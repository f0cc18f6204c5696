"""CUDA graphs of decoding: a step's hundreds of kernel launches are recorded once and replayed with a single call.

A graph is for so many sequences and so long a context, both rounded up; it reads buffers that stay where they are, into
which each step copies its inputs. The sequences that fill it up have nothing behind their new tokens and write nothing.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

from engine_svc.attention.base import AttentionMetadata
from engine_svc.recurrence.base import StateMetadata
from engine_svc.runner.batch import FlatBatch

logger = logging.getLogger(__name__)

Forward = Callable[[], torch.Tensor]
# Records a forward pass: what replays it, and the tensor in which each replay leaves the hidden states.
Capture = Callable[[Forward], tuple[Callable[[], None], torch.Tensor]]

_SHORTEST = 1024  # tokens of context; the graphs beyond are for twice as many each


def graph_sizes(asked: Sequence[int], max_num_seqs: int) -> list[int]:
    """Batch sizes: those asked for; up to the one asked for; or, by default, up to 512. None above `max_num_seqs`."""
    if len(asked) > 1:
        return sorted({min(size, max_num_seqs) for size in asked})
    most = min(asked[0] if asked else 512, max_num_seqs)
    return sorted({size for size in (1, 2, 4, *range(8, most, 8), most) if size <= most})


class CudaCapture:
    """Records on a stream of its own, as CUDA wants it; all graphs share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> tuple[Callable[[], None], torch.Tensor]:
        """See Capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # kernels compile and libraries make their plans before anything is recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = forward()
        return graph.replay, output


class DecodeGraphs:
    """One for each size and context that came up so far."""

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor, list[AttentionMetadata], StateMetadata], Forward],
        sizes: Sequence[int],
        num_groups: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        capture: Capture,
        query_len: int = 1,
        nobodys_slot: int = 0,
    ) -> None:
        """
        Args:
            nobodys_slot: of the states, for sequences that fill a graph up.
            forward: prepares a pass over such inputs (token ids, positions, metadata of each group of layers and of
                states).
            sizes: batch sizes, rising.
            query_len: tokens that every sequence computes in the steps that are recorded.
        """
        self._forward = forward
        self._sizes = list(sizes)
        self._query_len = query_len
        self._max_model_len = max_model_len
        self._capture = capture
        # What is prepared for a forward pass must live as long as its graph, which reads it.
        self._graphs: dict[tuple[int, int], tuple[Callable[[], None], torch.Tensor, Forward]] = {}
        self._broken = False
        most, blocks = self._sizes[-1], -(-max_model_len // block_size)

        def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._token_ids, self._positions = buffer(2, most * query_len, dtype=torch.int64)
        self._seq_lens = buffer(most)
        self._query_start_loc = torch.arange(most + 1, dtype=torch.int32, device=device) * query_len
        self._block_tables = [buffer(most, blocks) for _ in range(num_groups)]
        self._slot_mappings = [buffer(most * query_len, dtype=torch.int64) for _ in range(num_groups)]
        self._nobodys = nobodys_slot
        self._state_slots, self._is_fresh = buffer(most, dtype=torch.int64), buffer(most, dtype=torch.bool)

    def record(self, size: int) -> None:
        """Records the graph of a size and the shortest contexts before it is needed."""
        self._seq_lens.fill_(self._query_len)
        for slots in self._slot_mappings:
            slots.fill_(-1)
        self._record(size, min(_SHORTEST, self._max_model_len))

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """The hidden states of a batch of `query_len` tokens a sequence; None for any other, and without a graph."""
        count, metadata = len(batch.slots), batch.metadata[0]
        if self._broken or batch.uniform_query_len != self._query_len or count > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, count)]
        context = _SHORTEST
        while context < metadata.max_seq_len:
            context *= 2
        self._fill(batch, count, size)
        key = size, min(context, self._max_model_len)
        if key not in self._graphs:
            self._record(*key)
        if key not in self._graphs:
            return None
        replay, hidden, _ = self._graphs[key]
        replay()
        return hidden[: count * self._query_len]

    def _fill(self, batch: FlatBatch, count: int, size: int) -> None:
        """Copies the batch; behind it come sequences of new tokens only, whose slots are none."""
        length = self._query_len
        for buffer, values, per_sequence, rest in (
            (self._token_ids, batch.token_ids, length, 0),
            (self._positions, batch.positions, length, 0),
            (self._seq_lens, batch.metadata[0].seq_lens, 1, length),
            (self._state_slots, batch.states.slots, 1, self._nobodys),
            (self._is_fresh, batch.states.is_fresh, 1, True),
            *(
                (buffer, each.slot_mapping, length, -1)
                for buffer, each in zip(self._slot_mappings, batch.metadata, strict=True)
            ),
        ):
            buffer[: count * per_sequence].copy_(values)
            buffer[count * per_sequence : size * per_sequence].fill_(rest)
        for table, each in zip(self._block_tables, batch.metadata, strict=True):
            table[:count, : each.block_table.shape[1]].copy_(each.block_table)

    def _record(self, size: int, context: int) -> None:
        length, tokens = self._query_len, size * self._query_len
        metadata = [
            AttentionMetadata(
                query_start_loc=self._query_start_loc[: size + 1], seq_lens=self._seq_lens[:size],
                block_table=table[:size], slot_mapping=slots[:tokens], query_lens_host=[length] * size,
                seq_lens_host=[context] * size, max_query_len=length, max_seq_len=context,
            )
            for table, slots in zip(self._block_tables, self._slot_mappings, strict=True)
        ]  # fmt: skip
        states = StateMetadata(
            self._query_start_loc[: size + 1], self._state_slots[:size], self._is_fresh[:size], [length] * size
        )
        forward = self._forward(self._token_ids[:tokens], self._positions[:tokens], metadata, states)
        slots = self._state_slots.clone()
        self._state_slots.fill_(self._nobodys)  # recording runs the pass, and states must change once a step
        try:
            self._graphs[size, context] = (*self._capture(forward), forward)
            self._state_slots.copy_(slots)
        except RuntimeError as error:  # CUDA's errors are
            logger.warning("CUDA graphs are not used, decoding will be slower (--enforce-eager says so too): %s", error)
            self._broken = True
