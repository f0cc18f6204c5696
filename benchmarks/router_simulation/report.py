"""Figures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.router_simulation.job import EngineSpec
from benchmarks.router_simulation.oracle import Oracle
from benchmarks.router_simulation.requests import Conversation
from benchmarks.router_simulation.simulation import Simulation

# A request is served well when its first token comes within this time, and the others at this pace on average.
SLO_TTFT_SECONDS = 1.0
SLO_TPOT_SECONDS = 0.05


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    hit_rate: float  # cached tokens of all prompt tokens
    oracle_hit_rate: float
    max_over_mean_tokens: float  # computed, over the engines
    max_share: float  # largest share of the requests times the number of engines
    ttft_p50: float  # seconds
    ttft_p99: float
    goodput: float  # requests within the objective, per second
    within: float  # their share
    migrations: int
    errors: int

    @property
    def of_oracle(self) -> float:
        """Hit rate, as a share of the oracle's."""
        return self.hit_rate / self.oracle_hit_rate if self.oracle_hit_rate else 1.0


def seconds_of_work(conversations: Sequence[Conversation], spec: EngineSpec) -> float:
    """The least time in which one engine could do a whole trace.

    With every hit of the oracle, and as many sequences in each step as the engine runs.
    """
    oracle = Oracle()
    per_output = spec.seconds_per_token + spec.seconds_per_step / spec.max_num_seqs
    total = 0.0
    for conversation in sorted(conversations, key=lambda conversation: conversation.start):
        for _, request in conversation.turns:
            computed = request.prompt_tokens - oracle.arrive(request)
            total += computed * spec.seconds_per_token + request.output_tokens * per_output
    return total


def measure(simulation: Simulation) -> Figures:
    """Of a simulation that has run."""
    outcomes = simulation.history.outcomes
    good, started, cached, prompt = 0, [], 0, 0
    for request in simulation.requests:
        outcome = outcomes[request.number]
        if outcome.error or outcome.aborted:
            continue
        cached += outcome.cached_tokens
        prompt += request.prompt_tokens
        ttft = outcome.first - outcome.arrived
        started.append(ttft)
        tpot = (outcome.ended - outcome.first) / max(1, request.output_tokens - 1)
        good += ttft <= SLO_TTFT_SECONDS and tpot <= SLO_TPOT_SECONDS
    started.sort()
    tokens = [engine.computed_tokens for engine in simulation.engines]
    placed = Counter(outcome.workers[-1] for outcome in outcomes.values() if outcome.workers)
    first = min(outcome.arrived for outcome in outcomes.values())
    last = max(outcome.ended for outcome in outcomes.values())
    return Figures(
        hit_rate=cached / prompt,
        oracle_hit_rate=sum(outcome.oracle_tokens for outcome in outcomes.values())
        / sum(request.prompt_tokens for request in simulation.requests),
        max_over_mean_tokens=max(tokens) * len(tokens) / sum(tokens),
        max_share=max(placed.values()) / placed.total() * len(tokens),
        ttft_p50=started[len(started) // 2],
        ttft_p99=started[int(len(started) * 0.99)],
        goodput=good / (last - first),
        within=good / len(outcomes),
        migrations=sum(max(0, len(outcome.workers) - 1) for outcome in outcomes.values()),
        errors=sum(bool(outcome.error) for outcome in outcomes.values()),
    )
