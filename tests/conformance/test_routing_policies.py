"""The contract of every routing policy."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import StartupError
from quire.options.router import PlacementCostOptions, RouterOptions
from router.placement.policies.base import Policy, RouteRequest
from router.placement.policies.cost import cost_seconds
from router.placement.policies.least_loaded import work
from router.placement.policies.registry import POLICIES, make_policy
from tests.support.candidates import Candidate, candidates

figures = st.tuples(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10_000), st.integers(1, 512) | st.just(math.inf),
    st.integers(0, 10**7), st.sampled_from([1.0, 2.0]), st.floats(0, 100), st.floats(1e-9, 1), st.integers(0, 1000),
    st.integers(0, 10**6), st.booleans(),
)  # fmt: skip
fleets = st.lists(figures, min_size=1, max_size=40).map(
    lambda entries: [Candidate(f"w{i}:1", *entry) for i, entry in enumerate(entries)]
)
requests = st.builds(
    RouteRequest,
    request_id=st.text(max_size=8), model=st.sampled_from(["", "m"]), prompt_tokens=st.integers(0, 10**6),
    sequences=st.integers(1, 128), output_tokens=st.floats(0, 10**6), tenant=st.text(max_size=8),
    session_id=st.text(max_size=8), priority=st.integers(-10, 10),
)  # fmt: skip

ONE = RouteRequest("r", "", 3, 1, 128.0)


def make(name: str, weights: PlacementCostOptions = PlacementCostOptions()) -> Policy:
    return make_policy(RouterOptions(routing_policy=name, placement_cost=weights), random.Random(0))


def choose(policy: Policy, request: RouteRequest, fleet: Sequence[Candidate]) -> Candidate:
    return fleet[policy.choose(request, candidates(fleet))]


def idle(count: int) -> list[Candidate]:
    return [Candidate(f"w{i}:1") for i in range(count)]


def requests_of_sessions(count: int) -> list[RouteRequest]:
    return [RouteRequest(f"r{number}", "", 3, 1, 128.0) for number in range(count)]


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return make(request.param)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(request=requests, changing=st.lists(fleets, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_picks_a_candidate_while_the_fleet_changes(
    name: str, request: RouteRequest, changing: list[list[Candidate]]
) -> None:
    policy = make(name)
    for fleet in changing:
        given = candidates(fleet)
        before = candidates(fleet)
        assert 0 <= policy.choose(request, given) < len(fleet)
        assert (given.figures == before.figures).all()
        assert (given.cached_tokens == before.cached_tokens).all()


def plain_cost(request: RouteRequest, worker: Candidate, weights: PlacementCostOptions) -> float:
    """Computes for one worker what router/placement/policies/cost.py computes for all workers at once."""
    tokens = request.known_tokens - worker.cached_tokens - (1 - weights.host_tier_weight) * worker.host_cached_tokens
    prefill = worker.seconds_per_token * max(1.0, tokens)
    there = worker.sequences + request.sequences
    decode = request.output_tokens * (worker.seconds_per_step + worker.seconds_per_token * there)
    own = worker.seconds_per_token * worker.prefill_tokens + prefill + worker.lacks_adapter * weights.adapter_seconds
    own += decode * (1 + max(0, there - worker.max_sequences) / worker.max_sequences)
    others = worker.sequences * (prefill + request.output_tokens * worker.seconds_per_token * request.sequences)
    cost = own + prefill + weights.interference_weight * others
    return (cost + 16 * worker.seconds_per_token * worker.duplicate_tokens) * worker.crowding


@given(request=requests, fleet=fleets, temperature=st.sampled_from([0.0, 0.1, 3.0]))
@settings(max_examples=200, deadline=None)
def test_the_prefix_policy_picks_as_one_that_looks_at_each_worker_by_itself(
    request: RouteRequest, fleet: list[Candidate], temperature: float
) -> None:
    weights = PlacementCostOptions(routing_temperature=temperature)
    chosen = choose(make("prefix", weights), request, fleet)
    costs = [plain_cost(request, worker, weights) for worker in fleet]
    assert cost_seconds(request, candidates(fleet), weights).tolist() == pytest.approx(costs, rel=1e-12)
    most = min(costs) * (1 + temperature)
    surely = [worker for worker, cost in zip(fleet, costs, strict=True) if cost <= most * (1 - 1e-9)]
    perhaps = [worker for worker, cost in zip(fleet, costs, strict=True) if cost <= most * (1 + 1e-9)]
    assert chosen in perhaps
    assert all(chosen.last_placed <= worker.last_placed for worker in surely)


def test_an_empty_request_and_a_tuple_will_do(policy: Policy) -> None:
    request = RouteRequest("", "", 0, 1, 0.0)
    assert choose(policy, request, tuple(idle(2))) in idle(2)


def shares(policy: Policy, *fleets: list[Candidate], requests: int = 2000) -> list[int]:
    """Counts requests per worker, where each worker is idle again before the next request and the fleets take turns."""
    counts = Counter[str]()
    for number, request in enumerate(requests_of_sessions(requests), 1):
        fleet = fleets[number % len(fleets)]
        chosen = choose(policy, request, fleet)
        counts[chosen.address] += 1
        fleet[fleet.index(chosen)] = dataclasses.replace(chosen, last_placed=number)
    return [counts[worker.address] for fleet in fleets for worker in fleet]


def test_idle_equals_share_the_requests(policy: Policy) -> None:
    counts = shares(policy, idle(4))
    assert min(counts) > 350
    assert max(counts) < 650


def test_equals_share_the_requests_of_each_of_two_models(policy: Policy) -> None:
    counts = shares(policy, idle(2), [Candidate(f"v{i}:1") for i in range(2)])
    assert min(counts) > 350
    assert max(counts) < 650


def test_state_does_not_grow(policy: Policy) -> None:
    """A thousand workers that come and go leave no state behind."""
    for number in range(1000):
        choose(policy, ONE, [Candidate(f"w{number}:1")])
    held = [value for value in vars(policy).values() if isinstance(value, dict | list | set)]
    assert all(len(value) <= 1 for value in held)


@pytest.mark.parametrize("name", ["prefix", "least_loaded", "power_of_two"])
def test_load_aware_policies_avoid_the_busy_one(name: str) -> None:
    fleet = [*idle(1), Candidate("busy:1", sequences=50, prefill_tokens=9000)]
    assert {choose(make(name), ONE, fleet).address for _ in range(50)} == {"w0:1"}


def load_of(sequences: int, prefill_tokens: int, crowding: float) -> float:
    fleet = [Candidate("w:1", sequences=sequences, prefill_tokens=prefill_tokens, crowding=crowding)]
    return float(work(candidates(fleet))[0])


def test_least_loaded_weighs_long_prompts_and_full_caches() -> None:
    assert load_of(1, 8192, 1.0) > load_of(4, 0, 1.0)
    assert load_of(10, 0, 2.0) > load_of(15, 0, 1.0)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(StartupError, match="least_loaded"):
        make("psychic")


PROMPT = RouteRequest("r", "", 2000, 1, 100.0)


def prefix_choice(request: RouteRequest, *fleet: Candidate) -> str:
    return choose(make("prefix"), request, fleet).address


def test_the_prefix_decides_between_equals() -> None:
    assert prefix_choice(PROMPT, *idle(3), Candidate("holder:1", cached_tokens=160)) == "holder:1"


def test_a_prefix_is_computed_anew_when_its_holder_is_busier_than_that_costs() -> None:
    def holder(waiting: int) -> Candidate:
        return Candidate("holder:1", cached_tokens=1600, sequences=1, prefill_tokens=waiting)

    assert prefix_choice(PROMPT, *idle(1), holder(1000)) == "holder:1"
    assert prefix_choice(PROMPT, *idle(1), holder(10_000)) == "w0:1"


def test_nobody_computes_what_another_is_computing() -> None:
    """Holds even if the holder is busier, and waiting there takes as long as computing the prefix elsewhere."""
    holder = Candidate("holder:1", cached_tokens=1600, sequences=40, prefill_tokens=2400)
    assert prefix_choice(PROMPT, *idle(1), holder) == "w0:1"
    assert prefix_choice(PROMPT, dataclasses.replace(idle(1)[0], duplicate_tokens=1600), holder) == "holder:1"


def test_a_worker_that_runs_no_more_is_not_preferred_for_what_it_has_cached() -> None:
    """Beyond the worker's maximum of running sequences, a request has to wait until one of them ends."""

    def holder(sequences: int) -> Candidate:
        return Candidate("holder:1", cached_tokens=1600, sequences=sequences, max_sequences=16)

    assert prefix_choice(PROMPT, *idle(1), holder(10)) == "holder:1"
    assert prefix_choice(PROMPT, *idle(1), holder(18)) == "w0:1"


def test_what_lies_in_host_memory_counts_less_than_on_the_device_and_more_than_nothing() -> None:
    device, host = Candidate("device:1", cached_tokens=1600), Candidate("host:1", host_cached_tokens=1600)
    assert prefix_choice(PROMPT, *idle(1), host) == "host:1"
    assert prefix_choice(PROMPT, device, host) == "device:1"


def test_a_slow_worker_gets_its_share() -> None:
    """Of two workers, one three times slower, the fast one is cheaper until it has far more to do."""
    slow = Candidate("slow:1", sequences=8, prefill_tokens=800, seconds_per_step=0.06, seconds_per_token=3e-4)
    for sequences, chosen in ((8, "fast:1"), (16, "fast:1"), (160, "slow:1")):
        fast = Candidate("fast:1", sequences=sequences, prefill_tokens=100 * sequences)
        assert prefix_choice(PROMPT, slow, fast) == chosen


def test_conversations_stay_and_move_only_when_their_worker_goes() -> None:
    policy = make("consistent_hash")
    sessions = [RouteRequest(f"r{n}", "", 3, 1, 1.0, session_id=f"s{n}") for n in range(300)]
    fleet = idle(5)
    before = [choose(policy, request, fleet).address for request in sessions]
    assert before == [choose(policy, request, fleet[::-1]).address for request in sessions]
    after = [choose(policy, request, fleet[:-1]).address for request in sessions]
    assert all(old in (new, "w4:1") for old, new in zip(before, after, strict=True))
    assert min(before.count(worker.address) for worker in fleet) > 30


def test_a_conversation_leaves_a_worker_that_has_far_more_than_the_others() -> None:
    policy = make("consistent_hash")
    request = RouteRequest("r", "", 3, 1, 1.0, session_id="s")
    home = choose(policy, request, idle(4)).address
    fleet = [dataclasses.replace(worker, sequences=100 if worker.address == home else 10) for worker in idle(4)]
    assert choose(policy, request, fleet).address != home
