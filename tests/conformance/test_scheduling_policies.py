"""The contract of every scheduling policy: one order, in which requests are served and in reverse preempted."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.plan import StepPlan
from engine_svc.scheduler.policies import POLICIES
from tests.engine_svc.core.test_engine import VOCABULARY, expected, make_engine, request, run
from tests.support.fake_executor import FakeExecutor

every = pytest.mark.parametrize("name", POLICIES)
priorities = st.integers(-(2**31), 2**31 - 1)


def order(name: str, of_requests: list[int]) -> list[int]:
    """Sorts requests with the given priorities by rank, then by arrival."""
    policy = POLICIES[name]()
    return sorted(range(len(of_requests)), key=lambda arrival: (policy.rank(of_requests[arrival]), arrival))


@every
@given(priority=priorities, later=priorities)
def test_a_rank_does_not_change(name: str, priority: int, later: int) -> None:
    policy = POLICIES[name]()
    before = policy.rank(priority)
    policy.rank(later)
    assert policy.rank(priority) == before == POLICIES[name]().rank(priority)


@every
def test_one_at_a_time_they_run_in_order(name: str) -> None:
    given_priorities = [5, 1, 3, 1, -7, 5]
    engine = make_engine(scheduling_policy=name, max_num_seqs=1)
    for key, priority in enumerate(given_priorities):
        engine.add(key, request([key + 1], max_tokens=2, priority=priority))
    assert list(run(engine).last) == order(name, given_priorities)


@every
@pytest.mark.parametrize("seed", range(5))
def test_short_of_blocks_everybody_ends_and_the_first_never_yields(name: str, seed: int) -> None:
    source = random.Random(seed)
    given_priorities = [source.randint(-3, 3) for _ in range(8)]
    starts: Counter[int] = Counter()

    def count(plan: StepPlan) -> None:
        starts.update(new.token_ids[0] for new in plan.new_sequences)

    engine = make_engine(
        FakeExecutor(VOCABULARY, 4, verify=True, on_step=count), scheduling_policy=name, num_blocks=24, max_model_len=80
    )
    for key, priority in enumerate(given_priorities):
        engine.add(key, request([key, 1, 2], max_tokens=60, priority=priority))
    collected = run(engine)
    assert all(collected.tokens[key, 0] == expected([key, 1, 2], 60) for key in range(8))
    assert engine.load().counters.preemptions > 0
    assert starts[order(name, given_priorities)[0]] == 1


def test_what_the_policies_go_by() -> None:
    assert order("fcfs", [5, 1, 3, 1]) == [0, 1, 2, 3]
    assert order("priority", [5, 1, 3, 1]) == [1, 3, 2, 0]
