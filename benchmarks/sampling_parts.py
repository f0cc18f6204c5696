"""Time that tensor ranks on a CPU take from logits to tokens: by gathering logits, and by sampling in parts.

`python -m benchmarks.sampling_parts` prints the table of docs/scaling.md. Ranks are processes of one thread each that
share memory. Both ways take turns on the same random logits, distributed like those of a language model.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from engine_svc.native.library import Kernels, choose_kernels
from engine_svc.parallel.group import ParallelGroup
from engine_svc.parallel.shared_memory import SharedMemory
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import SamplingPlan, TokenMasks
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import SampleOutput, Sampler
from quire.sampling import SamplingParameters

CPU = torch.device("cpu")
SECONDS = 60.0
SEEN = 640  # tokens of each sequence
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-k 20": {"top_k": 20},
    "top-p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "top-k 20, top-p 0.95": {"top_k": 20, "top_p": 0.95},
    "top-p 0.95 at temperature 2": {"temperature": 2.0, "top_p": 0.95},
    "greedy, 5 log-probabilities": {"temperature": 0.0, "logprobs": 5},
    "greedy, presence penalty": {"temperature": 0.0, "presence_penalty": 0.5},
    "greedy, a grammar's mask": {"temperature": 0.0},
}


class CountingGroup(ParallelGroup):
    """A group that counts the bytes that its rank sends."""

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ParallelGroup."""
        vars(self)["sent"] = vars(self).get("sent", 0) + tensor.numel() * tensor.itemsize
        return super().all_gather_last(tensor)

    def taken(self) -> int:
        """Bytes sent since the last call."""
        found: int = vars(self).pop("sent", 0)
        return found


class Rank:
    """One of the ranks that share logits."""

    def __init__(self, rank: int, ranks: int, memory: mmap.mmap, kernels: Kernels) -> None:
        shared = SharedMemory(memory, rank, ranks, kernels, SECONDS)
        self.group = CountingGroup(rank, ranks, cast("Any", "processes"), shared=shared)
        self._kernels = kernels

    def measure(self, name: str, vocabulary: int, rows: int, rounds: int) -> str:
        """Measures one case and returns its row of the table."""
        part = VocabularyPart(vocabulary, self.group)
        sampler = self._sampler(name, vocabulary, rows)
        masks = TokenMasks(list(range(rows)), b"\x55" * (rows * -(-vocabulary // 32) * 4))
        torch.manual_seed(0)
        likely = torch.stack([torch.randperm(vocabulary) for _ in range(rows)])
        logits = (-1.5 * (likely + 1).log())[:, part.first : part.first + part.count].contiguous()
        taken = SampledRows(list(range(rows)), [SEEN] * rows)
        assert sampler.takes_parts(taken)

        def gathered(logits: torch.Tensor) -> SampleOutput:
            return sampler.sample(part.whole(logits).contiguous(), taken, masks)

        def by_parts(logits: torch.Tensor) -> SampleOutput:
            return sampler.sample(logits, taken, masks, part)

        times: tuple[list[float], list[float]] = ([], [])
        sent = [0, 0]
        for _ in range(rounds):
            for which, way in enumerate((gathered, by_parts)):
                seconds, sent[which] = self._timed(way, logits.clone())
                times[which].append(seconds)
        one, other = (statistics.median(found) * 1e6 for found in times)
        return (
            f"| {vocabulary:,} | {rows} | {name} | {sent[0]:,} | {one:,.0f} | {sent[1]:,} | {other:,.0f} "
            f"| {other / one:.2f} |"
        )

    def _sampler(self, name: str, vocabulary: int, rows: int) -> Sampler:
        sampler = Sampler(rows, vocabulary, CPU, kernels=self._kernels)
        for slot in range(rows):
            plan = SamplingPlan(SamplingParameters(**CASES[name]), slot, follows_grammar="grammar" in name)
            seen = torch.randint(vocabulary, (SEEN,), generator=torch.Generator().manual_seed(slot)).tolist()
            sampler.add(slot, plan, seen, SEEN // 2)
        return sampler

    def _timed(self, way: Callable[[torch.Tensor], SampleOutput], logits: torch.Tensor) -> tuple[float, int]:
        """Seconds since all ranks were ready, and bytes sent."""
        self.group.all_gather_last(torch.zeros(1))
        self.group.taken()
        began = time.perf_counter()
        way(logits)
        return time.perf_counter() - began, self.group.taken()


def lines(rank: Rank, options: argparse.Namespace) -> Iterable[str]:
    for vocabulary in options.vocabularies:
        for rows in options.rows:
            for name in CASES:
                rounds = max(9, math.ceil(options.rounds / rows))
                yield rank.measure(name, vocabulary, rows, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[151_936])
    parser.add_argument("--rounds", type=int, default=300, help="divided by the number of rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels = choose_kernels("auto", CPU)
    assert kernels is not None
    memory = mmap.mmap(-1, SharedMemory.size(options.ranks))
    rank = next((rank for rank in range(1, options.ranks) if not os.fork()), 0)
    if not rank:
        print("| vocabulary | rows | | a rank sends, bytes | µs | by parts: bytes | µs | ratio |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
    for line in lines(Rank(rank, options.ranks, memory, kernels), options):
        if not rank:
            print(line, flush=True)


if __name__ == "__main__":
    main()
