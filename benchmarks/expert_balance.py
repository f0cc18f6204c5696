"""Benefit of moving experts, on synthetic loads; prints the table of docs/scaling.md.

`python -m benchmarks.expert_balance` plans for 58 layers of 256 experts, as in DeepSeek-V3, whose shares of the tokens
are log-normal (sigma 1). Balancedness is the mean of the ranks' tokens divided by their maximum.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from engine_svc.parallel.balance import balancedness, moves, rebalanced
from engine_svc.parallel.placement import linear

_LAYERS, _EXPERTS = 58, 256


@dataclass(frozen=True)
class Layer:
    """The results for one layer."""

    before: float
    after: float
    num_moves: int
    milliseconds: float  # of planning


def plan(loads: list[int], ranks: int, redundant: int) -> Layer:
    """Plans one layer, starting from experts in their original order."""
    now, started = linear(len(loads), ranks, redundant), time.perf_counter()
    wanted = rebalanced(loads, now)
    took = (time.perf_counter() - started) * 1e3
    return Layer(balancedness(loads, now), balancedness(loads, wanted), len(moves(now, wanted)), took)


def main() -> None:
    """Prints the table."""
    print("| ranks | redundant slots | balanced before | after | experts that move | planning |")
    print("|---|---|---|---|---|---|")
    for ranks in (8, 64):
        for redundant in (0, 32, 64):
            drawn = random.Random(1)
            loads = [[int(1000 * drawn.lognormvariate(0, 1)) for _ in range(_EXPERTS)] for _ in range(_LAYERS)]
            layers = [plan(each, ranks, redundant) for each in loads]
            before, after, moved, took = (
                statistics.mean(getattr(layer, name) for layer in layers)
                for name in ("before", "after", "num_moves", "milliseconds")
            )
            print(f"| {ranks} | {redundant} | {before:.2f} | {after:.2f} | {moved:.0f} | {took:.0f} ms |")


if __name__ == "__main__":
    main()
