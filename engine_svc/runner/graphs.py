"""CUDA graphs: a step's hundreds of kernel launches are recorded once and replayed with a single call.

A decode graph serves a number of sequences with a number of new tokens each, both rounded up, whatever the context
lengths. The padding sequences that fill it up have no context and write nothing. A prefill graph serves a total number
of new tokens, however they are distributed over sequences, with or without decoding sequences among them. Prefill
graphs are recorded up to the size at which a GPU computes for as long as the host takes to launch the kernels. All
graphs are recorded at startup.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine_svc.runner.batch import FlatBatch
from engine_svc.runner.inputs import Shape
from engine_svc.runner.recorded import CannotRecord, Capture, Forward, Replay, Shapes

_FEW_SEQUENCES, _FEW_TOKENS = 8, 256
# Estimated from steps on an H100, where launching one layer took the host 0.75 ms: 4096 tokens of hidden size 1024, or
# 1024 tokens of hidden size 4096.
_PROMPT_VALUES = 1 << 22


class CudaCapture(Capture):
    """Records CUDA graphs on a stream of its own, as CUDA requires.

    All graphs share one memory pool, and the libraries' workspaces, of which there is one per stream.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """See Capture."""
        try:
            return self._record(forward)
        except RuntimeError as error:  # the base class of CUDA errors
            raise CannotRecord(
                f"CUDA graphs are not used, so decoding will be slower (as with --enforce-eager): {error}"
            ) from error

    def _record(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # kernels must be compiled and libraries must have made their plans before recording
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA during the capture: those that read adapters, and NCCL's watchdog.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = forward()
        return graph.replay, output


class Held(NamedTuple):
    """Bytes of a GPU's memory that this process holds."""

    reserved: int  # by torch
    allocated: int  # part of the reserved bytes that tensors use


def held_by(device: torch.device) -> Held:
    """Memory that this process holds on a GPU, after torch has freed the blocks that it had cached for reuse."""
    torch.cuda.empty_cache()
    return Held(torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))


class MeasuredCapture(Capture):
    """Estimates from the first recordings, which are the largest, how much memory all recordings take.

    All share a pool: those after the first one fit into the memory that it took, except for their results, which stay
    allocated.
    """

    def __init__(self, capture: Capture, held: Callable[[], Held]) -> None:
        """
        Args:
            capture: does the recording.
            held: returns the memory that is held at the time of the call.
        """
        self._capture, self._held = capture, held
        self._found = [held()]

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """See Capture."""
        recorded = self._capture(forward)
        self._found.append(self._held())
        return recorded

    def total(self, count: int) -> int:
        """Upper bound of the bytes that `count` recordings take; 0 if nothing could be recorded."""
        if len(self._found) == 1:
            return 0
        before, first, *_, last = (*self._found, self._found[-1])
        return first.reserved - before.reserved + (count - 1) * (last.allocated - first.allocated)


def graph_sizes(asked: Sequence[int], max_num_seqs: int) -> list[int]:
    """Batch sizes of decode graphs, none above `max_num_seqs`.

    Several sizes in `asked` are taken as they are; a single one is the largest of a default series; without any, the
    series goes up to 512.
    """
    if len(asked) > 1:
        return sorted({min(size, max_num_seqs) for size in asked})
    most = min(asked[0] if asked else 512, max_num_seqs)
    return sorted({size for size in (1, 2, 4, *range(8, most, 8), most) if size <= most})


def prompt_sizes(asked: Sequence[int], budget: int, hidden_size: int) -> list[int]:
    """Numbers of new tokens of prefill graphs, none above `budget`.

    Several sizes in `asked` are taken as they are; a single one is the largest of a default series; without any, the
    series goes up to the size that a GPU computes for about as long as the host takes to launch the kernels.
    """
    if len(asked) > 1:
        return sorted({size for size in asked if 1 < size <= budget})
    most = min(asked[0] if asked else max(512, _PROMPT_VALUES // hidden_size // 256 * 256), budget)
    sizes, size = [], 16
    while size < most:
        sizes.append(size)
        size += max(16, 1 << size.bit_length() - 3)  # at most a quarter more, from 64 tokens on
    return [*sizes, most] if most > 1 else []


@dataclass(frozen=True)
class PaddedShapes(Shapes):
    """Shapes of CUDA graphs, to which batches are rounded up: padding rows cost a GPU next to nothing."""

    sizes: Sequence[int]  # numbers of sequences, ascending
    longest: int  # positions of a sequence
    # Most new tokens per sequence, ascending. The tokens of all sequences are packed one after the other, however many
    # each one has; the rows left over are padding.
    query_lens: Sequence[int] = (1,)
    # See AttentionBackend.most_positions.
    most_positions: Callable[[int, int], int] = lambda sequences, query_len: sys.maxsize
    have_adapters: bool = False  # whether all shapes except those of prompts are also recorded with adapters
    prompt_sizes: Sequence[int] = ()  # new tokens of steps with prompts, ascending
    most: int | None = None  # how many shapes are recorded; None means all

    def of(self, batch: FlatBatch) -> Shape | None:
        """See Shapes.of."""
        count, longest = len(batch.slots), max(batch.query_lens)
        if count > self.sizes[-1] or max(batch.lengths) > self.longest:
            return None
        if longest > self.query_lens[-1]:
            return self._with_prompts(batch, count)
        query_len = self.query_lens[bisect_left(self.query_lens, longest)]
        size = self.sizes[bisect_left(self.sizes, count)]
        shape = self._shape(size, query_len)
        return shape if sum(batch.lengths) + (size - count) * query_len <= size * shape.context else None

    def all(self) -> list[Shape]:
        """See Shapes.all. The largest comes first, so that the others fit into the memory that it takes."""
        shapes = [self._shape(size, query_len) for query_len in self.query_lens[::-1] for size in self.sizes[::-1]]
        shapes = [shape for shape in shapes if shape.context >= shape.query_len]
        with_adapters = [shape._replace(has_adapters=True) for shape in shapes] if self.have_adapters else []
        prompts = [
            self._shape(size, 0)._replace(tokens=tokens)
            for tokens in self.prompt_sizes[::-1] for size in self._beside(tokens)[::-1]
        ]  # fmt: skip
        return [*prompts, *with_adapters, *shapes][: self.most]

    def _with_prompts(self, batch: FlatBatch, count: int) -> Shape | None:
        tokens = batch.num_tokens
        if not self.prompt_sizes or tokens > self.prompt_sizes[-1]:
            return None
        tokens = self.prompt_sizes[bisect_left(self.prompt_sizes, tokens)]
        sizes = self._beside(tokens)
        shape = self._shape(sizes[bisect_left(sizes, count)], 0)._replace(tokens=tokens)
        decoding = sum(length for length, new in zip(batch.lengths, batch.query_lens, strict=True) if new == 1)
        return shape if decoding <= shape.sequences * shape.context else None

    def _beside(self, tokens: int) -> list[int]:
        """Numbers of sequences of graphs with prompts, ascending.

        Only graphs with few tokens come in two sizes, because their cost depends on the number of sequences.
        """
        most = self.sizes[-1]
        return sorted({min(_FEW_SEQUENCES, most), most}) if tokens <= _FEW_TOKENS else [most]

    def _shape(self, size: int, query_len: int) -> Shape:
        context = min(self.longest, self.most_positions(size, max(query_len, 1)) // size)
        return Shape(size, size * query_len, query_len, context)
