"""CUDA graphs: a step's hundreds of kernel launches are recorded once and replayed with a single call.

A graph of decoding is for so many sequences and so many new tokens of each, rounded up, whatever their contexts. The
sequences that fill it up have nothing behind their new tokens and write nothing. A graph of prompts is for so many new
tokens, whosever they are, beside sequences that decode or without: up to where a GPU computes for as long as the host
launches. All graphs are recorded at a start.
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
# Reckoned from steps on an H100, in which a layer took the host 0.75 ms: 4096 tokens of 1024 values, or 1024 of 4096.
_PROMPT_VALUES = 1 << 22


class CudaCapture(Capture):
    """Records on a stream of its own, as CUDA wants it; all graphs share one pool of memory, and libraries' workspaces,
    of which each stream has its own."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """See Capture."""
        try:
            return self._record(forward)
        except RuntimeError as error:  # CUDA's errors are
            raise CannotRecord(
                f"CUDA graphs are not used, decoding will be slower (--enforce-eager says so too): {error}"
            ) from error

    def _record(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # kernels compile and libraries make their plans before anything is recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA meanwhile: those that read adapters, NCCL's watchdog.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = forward()
        return graph.replay, output


class Held(NamedTuple):
    """Bytes of a GPU's memory."""

    reserved: int  # by torch
    allocated: int  # of these, by tensors


def held_by(device: torch.device) -> Held:
    """All that is held of a GPU, but for what torch has kept for reuse."""
    torch.cuda.empty_cache()
    return Held(torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))


class MeasuredCapture(Capture):
    """Tells from the first recordings, which are the largest, how much memory all take. All share a pool: those after
    the first find room in what it has taken, but for their results, which stay."""

    def __init__(self, capture: Capture, held: Callable[[], Held]) -> None:
        """
        Args:
            capture: the way to record.
            held: at this moment.
        """
        self._capture, self._held = capture, held
        self._found = [held()]

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """See Capture."""
        recorded = self._capture(forward)
        self._found.append(self._held())
        return recorded

    def total(self, count: int) -> int:
        """Bytes of so many recordings, at most; 0 where none could be made."""
        if len(self._found) == 1:
            return 0
        before, first, *_, last = (*self._found, self._found[-1])
        return first.reserved - before.reserved + (count - 1) * (last.allocated - first.allocated)


def graph_sizes(asked: Sequence[int], max_num_seqs: int) -> list[int]:
    """Batch sizes: those asked for; up to the one asked for; or, by default, up to 512. None above `max_num_seqs`."""
    if len(asked) > 1:
        return sorted({min(size, max_num_seqs) for size in asked})
    most = min(asked[0] if asked else 512, max_num_seqs)
    return sorted({size for size in (1, 2, 4, *range(8, most, 8), most) if size <= most})


def prompt_sizes(asked: Sequence[int], budget: int, hidden_size: int) -> list[int]:
    """New tokens of steps with prompts: those asked for; up to the one asked for; or, by default, up to as many as a
    GPU computes for about as long as the host launches. None is above the budget."""
    if len(asked) > 1:
        return sorted({size for size in asked if 1 < size <= budget})
    most = min(asked[0] if asked else max(512, _PROMPT_VALUES // hidden_size // 256 * 256), budget)
    sizes, size = [], 16
    while size < most:
        sizes.append(size)
        size += max(16, 1 << size.bit_length() - 3)  # a quarter more, at most, of those that are not few
    return [*sizes, most] if most > 1 else []


@dataclass(frozen=True)
class PaddedShapes(Shapes):
    """So many sequences, rounded up: a GPU computes rows of nobody for nothing."""

    sizes: Sequence[int]  # rising
    max_model_len: int
    # New tokens that a sequence has at most, rising. Those of all stand one behind the other, whatever each has; rows
    # that are left over are nobody's.
    query_lens: Sequence[int] = (1,)
    # See AttentionBackend.most_positions.
    most_positions: Callable[[int, int], int] = lambda sequences, query_len: sys.maxsize
    have_adapters: bool = False  # each is recorded with adapters too, but those of prompts
    prompt_sizes: Sequence[int] = ()  # new tokens of steps with prompts, rising
    most: int | None = None  # of all, those that are recorded; None: all

    def of(self, batch: FlatBatch) -> Shape | None:
        """See Shapes.of."""
        count, longest = len(batch.slots), max(batch.query_lens)
        if count > self.sizes[-1]:
            return None
        if longest > self.query_lens[-1]:
            return self._with_prompts(batch, count)
        query_len = self.query_lens[bisect_left(self.query_lens, longest)]
        size = self.sizes[bisect_left(self.sizes, count)]
        shape = self._shape(size, query_len)
        return shape if sum(batch.lengths) + (size - count) * query_len <= size * shape.context else None

    def all(self) -> list[Shape]:
        """See Shapes.all: the largest first, for the others find room in what it has taken."""
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
        """Sequences of steps with prompts, rising: with few tokens, it tells how many there is room for."""
        most = self.sizes[-1]
        return sorted({min(_FEW_SEQUENCES, most), most}) if tokens <= _FEW_TOKENS else [most]

    def _shape(self, size: int, query_len: int) -> Shape:
        context = min(self.max_model_len, self.most_positions(size, max(query_len, 1)) // size)
        return Shape(size, size * query_len, query_len, context)
