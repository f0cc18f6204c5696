"""What every routing policy must do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import StartupError
from router.policies.base import Policy, RouteRequest, WorkerLoad, WorkerView
from router.policies.least_loaded import cost
from router.policies.registry import POLICIES, make_policy

loads = st.builds(
    WorkerLoad,
    sequences=st.integers(0, 10_000),
    prefill_tokens=st.integers(0, 10**7),
    kv_usage=st.floats(0, 1),
)
fleets = st.lists(st.tuples(loads, st.integers(0, 5000)), min_size=1, max_size=40).map(
    lambda entries: [WorkerView(f"w{i}:1", load, inflight) for i, (load, inflight) in enumerate(entries)]
)
requests = st.builds(
    RouteRequest,
    request_id=st.text(max_size=8), model=st.sampled_from(["", "m"]),
    prompt_token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=50), sequences=st.integers(1, 128),
    cache_salt=st.text(max_size=8), priority=st.integers(-10, 10),
)  # fmt: skip

ONE = RouteRequest("r", "", [1, 2, 3], 1, "", 0)


def idle(count: int) -> list[WorkerView]:
    return [WorkerView(f"w{i}:1", WorkerLoad(0, 0, 0.0), 0) for i in range(count)]


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(request=requests, changing=st.lists(fleets, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_picks_a_candidate_while_the_fleet_changes(
    name: str, request: RouteRequest, changing: list[list[WorkerView]]
) -> None:
    policy = make_policy(name)
    for fleet in changing:
        before = list(fleet)
        chosen = policy.choose(request, fleet)
        assert any(chosen is worker for worker in fleet)
        assert fleet == before


def test_an_empty_prompt_and_a_tuple_will_do(policy: Policy) -> None:
    request = RouteRequest("", "", (), 1, "", 0)
    assert policy.choose(request, tuple(idle(2))) in idle(2)


def test_idle_equals_share_the_requests(policy: Policy) -> None:
    random.seed(0)
    counts = dict.fromkeys((worker.address for worker in idle(4)), 0)
    for _ in range(2000):
        counts[policy.choose(ONE, idle(4)).address] += 1
    assert min(counts.values()) > 350
    assert max(counts.values()) < 650


def test_state_does_not_grow(policy: Policy) -> None:
    """A thousand workers that come and go leave nothing behind."""
    for number in range(1000):
        policy.choose(ONE, [WorkerView(f"w{number}:1", WorkerLoad(0, 0, 0.0), 0)])
    held = [value for value in vars(policy).values() if isinstance(value, dict | list | set)]
    assert all(len(value) <= 1 for value in held)


@pytest.mark.parametrize("name", ["least_loaded", "power_of_two"])
def test_load_aware_policies_avoid_the_busy_one(name: str) -> None:
    fleet = [*idle(1), WorkerView("busy:1", WorkerLoad(50, 9000, 0.5), 50)]
    assert {make_policy(name).choose(ONE, fleet).address for _ in range(50)} == {"w0:1"}


def test_least_loaded_weighs_long_prompts_and_full_caches() -> None:
    assert cost(WorkerLoad(1, 8192, 0.1)) > cost(WorkerLoad(4, 0, 0.1))
    assert cost(WorkerLoad(10, 0, 0.99)) > cost(WorkerLoad(15, 0, 0.5))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(StartupError, match="least_loaded"):
        make_policy("psychic")
