"""Data-parallel ranks of one model: each has an engine in its own thread; they connect like the ranks of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from engine_svc.core.engine import Engine
from tests.support.engine_process import free_port
from tests.support.run_engine import running_engine

T = TypeVar("T")


class DataRanks:
    """Engines, and the threads that call them: one each."""

    def __init__(self, threads: Sequence[ThreadPoolExecutor], engines: Sequence[Engine]) -> None:
        self._threads, self.engines = threads, engines

    def each(self, do: Callable[[int, Engine], T]) -> list[T]:
        """Calls a function with (number, engine) for all engines at the same time, and returns the results."""
        return [future.result(300) for future in [
            thread.submit(do, number, engine)
            for number, (thread, engine) in enumerate(zip(self._threads, self.engines, strict=True))
        ]]  # fmt: skip


@contextmanager
def running_data_ranks(folder: Path, count: int, **options: Any) -> Iterator[DataRanks]:
    """Runs data ranks, which start and end together like workers."""
    port = free_port()
    threads = [ThreadPoolExecutor(1) for _ in range(count)]
    contexts = [
        running_engine(
            folder, data_parallel_size=count, data_parallel_rank=rank, data_parallel_master_port=port,
            **{"cpu_threads": 1} | options,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        starting = [thread.submit(context.__enter__) for thread, context in zip(threads, contexts, strict=True)]
        yield DataRanks(threads, [future.result(300) for future in starting])
    finally:
        ending = [thread.submit(context.__exit__, None, None, None)
                  for thread, context in zip(threads, contexts, strict=True)]  # fmt: skip
        for future in ending:
            future.result(300)
        for thread in threads:
            thread.shutdown()
