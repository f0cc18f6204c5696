"""CUDA graphs of decoding: a step's hundreds of kernel launches are recorded once and replayed with a single call.

A graph is for so many sequences, so many new tokens of each and so long contexts on average, all rounded up. The
sequences that fill it up have nothing behind their new tokens and write nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine_svc.runner.batch import FlatBatch
from engine_svc.runner.inputs import Shape
from engine_svc.runner.recorded import CannotRecord, Capture, Forward, Replay, Shapes

_SHORTEST = 1024  # tokens of context, on average; the graphs beyond are for twice as many each


class CudaCapture(Capture):
    """Records on a stream of its own, as CUDA wants it; all graphs share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """See Capture."""
        try:
            return self._record(forward)
        except RuntimeError as error:  # CUDA's errors are
            raise CannotRecord(
                f"CUDA graphs are not used, decoding will be slower (--enforce-eager says so too): {error}"
            ) from error

    def _record(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # kernels compile and libraries make their plans before anything is recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA meanwhile: those that read adapters, NCCL's watchdog.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = forward()
        return graph.replay, output


def graph_sizes(asked: Sequence[int], max_num_seqs: int) -> list[int]:
    """Batch sizes: those asked for; up to the one asked for; or, by default, up to 512. None above `max_num_seqs`."""
    if len(asked) > 1:
        return sorted({min(size, max_num_seqs) for size in asked})
    most = min(asked[0] if asked else 512, max_num_seqs)
    return sorted({size for size in (1, 2, 4, *range(8, most, 8), most) if size <= most})


@dataclass(frozen=True)
class PaddedShapes(Shapes):
    """So many sequences and so long contexts, both rounded up: a GPU computes rows of nobody for nothing."""

    sizes: Sequence[int]  # rising
    max_model_len: int
    # New tokens that a sequence has at most, rising. Those of all stand one behind the other, whatever each has; rows
    # that are left over are nobody's.
    query_lens: Sequence[int] = (1,)
    # Whether so many sequences may have contexts of so many tokens together.
    fits: Callable[[int, int], bool] = lambda sequences, positions: True

    def of(self, batch: FlatBatch) -> Shape | None:
        """See Shapes.of."""
        count, longest = len(batch.slots), batch.metadata[0].max_query_len
        if longest > self.query_lens[-1] or count > self.sizes[-1]:
            return None
        query_len = self.query_lens[bisect_left(self.query_lens, longest)]
        size = self.sizes[bisect_left(self.sizes, count)]
        positions, context = sum(batch.lengths) + (size - count) * query_len, _SHORTEST
        while context * size < positions:
            context *= 2
        return self._shape(size, query_len, context)

    def early(self) -> list[Shape]:
        """See Shapes.early: a few sizes, and the shortest contexts."""
        sizes = [size for size in self.sizes if size.bit_count() == 1]
        shapes = [self._shape(size, query_len, _SHORTEST) for query_len in self.query_lens for size in sizes]
        return [shape for shape in shapes if shape is not None]

    def _shape(self, size: int, query_len: int, context: int) -> Shape | None:
        context = min(context, self.max_model_len)
        return Shape(size, size * query_len, query_len, context) if self.fits(size, size * context) else None
