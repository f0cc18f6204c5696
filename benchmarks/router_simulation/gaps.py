"""How long streams stand still when many move at once: `python -m benchmarks.router_simulation.gaps`.

Forty streams of 250 tokens, with prompts of 32 to 1,024, on simulated engines that compute 1,000 tokens in a second.
One engine dies, and comes back 5 s later where it is the only one.
"""

from __future__ import annotations

import itertools
import logging
import statistics
from collections import defaultdict
from random import Random

from benchmarks.router_simulation.faults import Fault, Kind
from benchmarks.router_simulation.job import EngineSpec
from benchmarks.router_simulation.requests import Conversation, SimRequest, Text
from benchmarks.router_simulation.simulation import Scenario, Simulation
from quire.options.router import RouterOptions
from quire.v1 import common_pb2

_STREAMS = 40
_OUTPUT_TOKENS = 250
_SHARED_TOKENS = 512
_DIES_AT = 15.0  # seconds
_ENGINE = EngineSpec(
    seconds_per_step=0.03, seconds_per_token=0.001, max_num_seqs=64, max_num_batched_tokens=512, num_blocks=20_000,
    tokens_per_delta=1,
)  # fmt: skip


class TimedSimulation(Simulation):
    """Keeps the time of each delta."""

    def __init__(self, scenario: Scenario) -> None:
        self.times: defaultdict[int, list[float]] = defaultdict(list)
        super().__init__(scenario)

    def moved_gaps(self) -> list[float]:
        """The longest of each stream that has moved."""
        moved = [number for number, outcome in self.history.outcomes.items() if len(outcome.workers) > 1]
        pairs = (itertools.pairwise(self.times[number]) for number in moved if len(self.times[number]) > 1)
        return [max(later - earlier for earlier, later in each) for each in pairs]

    def _take(self, delta: common_pb2.GenerationDelta) -> None:
        if delta.token_ids:
            self.times[delta.stream_id].append(self.clock.time())
        super()._take(delta)


def scenario(engines: int, shared: bool) -> Scenario:
    """Streams that begin at once."""
    random = Random(3)
    conversations = []
    for number in range(_STREAMS):
        text = Text().add(1, _SHARED_TOKENS) if shared else Text()
        text.add(1000 + number, random.choice((32, 64, 256, 1024)))
        prompt_tokens = text.num_tokens
        keys = text.add(2000 + number, _OUTPUT_TOKENS).keys
        conversations.append(Conversation(0.0, [(0.0, SimRequest(number, keys, prompt_tokens, _OUTPUT_TOKENS))]))
    fault = Fault(_DIES_AT, Kind.KILL, 0, 5.0 if engines == 1 else 100.0)
    return Scenario(conversations, 1.0, [_ENGINE] * engines, RouterOptions(), seed=1, faults=[fault])


def main() -> None:
    logging.disable(logging.WARNING)
    print("| engines | prompts | moved | longest gap | mean | median |\n|---|---|---|---|---|---|")
    for engines, shared in ((3, False), (2, False), (2, True), (1, False)):
        simulation = TimedSimulation(scenario(engines, shared))
        simulation.run()
        gaps = simulation.moved_gaps()
        kind = f"{_SHARED_TOKENS} tokens in common" if shared else "nothing in common"
        figures = (max(gaps), statistics.mean(gaps), statistics.median(gaps))
        print(f"| {engines} | {kind} | {len(gaps)} | " + " | ".join(f"{each:.1f} s" for each in figures) + " |")


if __name__ == "__main__":
    main()
