"""How long a call takes, on a CPU or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_REPEATS, _SECONDS = 9, 0.5
RECORDED_CALLS = 20


def best_seconds(call: Callable[[], object], device: torch.device, calls: int = RECORDED_CALLS) -> float:
    """The shortest of some runs, without the first one, unless that takes too long to wait for others.

    Args:
        calls: number of calls per run on a GPU, where they are replayed as one CUDA graph, without the host's launch
            overhead.
    """
    if device.type == "cpu":
        return _shortest(call)
    return _shortest(_recorded(call, calls)) / calls


def _recorded(call: Callable[[], object], calls: int) -> Callable[[], None]:
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    replay: Callable[[], None] = graph.replay
    return replay


def _shortest(call: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) <= _REPEATS and sum(times) < _SECONDS:
        _synchronize()
        start = time.perf_counter()
        call()
        _synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
