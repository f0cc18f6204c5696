"""Costs and benefits of `--enable-dbo` on CPU ranks; prints the table of docs/scaling.md.

`python -m benchmarks.dual_batch` runs two tensor ranks, or two data ranks, of one thread each that share the experts of
a small mixture with random weights. Engines that split their steps and engines that do not take turns. With a slow
network, each collective takes the additional time that its result would take at 1 Gb/s, without using a processor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.engine_alone import EngineAlone
from benchmarks.models import build_config
from quire.serve.ports import free_ports

PROMPT, SEQUENCES, DECODED, STEPS = 1024, 64, 8, 5
LAYOUTS = {"tensor": 1, "data": 2}  # the engines of two ranks
LINKS = {"memory": "auto", "1 Gb/s": "benchmarks.slow_links.SlowLinks"}
CUT = {"enable_dbo": True, "dbo_decode_token_threshold": 0, "dbo_prefill_token_threshold": 256}


class Ranks:
    """The engines of all data ranks of one layout, which do the same at the same time."""

    def __init__(self, stack: ExitStack, folder: str, count: int, **options: Any) -> None:
        self._threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(count)]
        if count > 1:
            options |= {"data_parallel_size": count, "data_parallel_master_port": free_ports(1)[0]}
        else:
            options |= {"tensor_parallel_size": 2}
        starting = [
            thread.submit(
                EngineAlone, folder, load_format="dummy", cpu_threads=1, enable_expert_parallel=True,
                kv_cache_memory_bytes=2**28, max_model_len=2048, max_num_batched_tokens=PROMPT, max_num_seqs=SEQUENCES,
                **options | ({"data_parallel_rank": rank} if count > 1 else {}),
            )
            for rank, thread in enumerate(self._threads)
        ]  # fmt: skip
        self._engines = [each.result() for each in starting]
        stack.callback(lambda: self.each(lambda engine: engine.__exit__(None, None, None)))

    def each(self, do: Callable[[EngineAlone], Any]) -> list[Any]:
        """Runs a function on all engines at the same time and returns its results."""
        work = [thread.submit(do, engine) for thread, engine in zip(self._threads, self._engines, strict=True)]
        return [each.result() for each in work]


def compare(folder: str, count: int, worker: str, rounds: int) -> list[tuple[float, float]]:
    """Median milliseconds (whole, split), of a prompt and of a decode step."""
    times: dict[tuple[int, bool], list[float]] = {}
    with ExitStack() as stack:
        engines = {cut: Ranks(stack, folder, count, worker_cls=worker, **CUT if cut else {}) for cut in (False, True)}
        for number in range(rounds):
            for cut in (bool(number % 2), not number % 2):
                ranks = engines[cut]
                prompts = [max(ranks.each(lambda engine: engine.prefill_seconds(PROMPT))) for _ in range(2)]
                decoded = max(ranks.each(lambda engine: engine.decode_seconds(SEQUENCES, DECODED, STEPS)))
                times.setdefault((0, cut), []).append(min(prompts))
                times.setdefault((1, cut), []).append(decoded)
    return [tuple(statistics.median(times[kind, cut]) * 1e3 for cut in (False, True)) for kind in range(2)]  # type: ignore[misc]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", nargs="+", choices=LAYOUTS, default=[*LAYOUTS])
    parser.add_argument("--network", nargs="+", choices=LINKS, default=[*LINKS])
    arguments = parser.parse_args()
    print("| ranks | network | a step of | whole | in halves | |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        build_config("small-mixtral", Path(folder))
        for what, link in itertools.product(arguments.ranks, arguments.network):
            found = compare(folder, LAYOUTS[what], LINKS[link], arguments.rounds)
            for name, (whole, cut) in zip((f"a prompt of {PROMPT}", f"{SEQUENCES} sequences"), found, strict=True):
                print(f"| 2 {what} | {link} | {name} | {whole:.1f} | {cut:.1f} | {cut / whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
