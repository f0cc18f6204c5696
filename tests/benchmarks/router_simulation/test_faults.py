"""Runs the router's core through random faults and checks that no request is lost, answered twice or left over."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.router_simulation.faults import Kind, random_faults
from benchmarks.router_simulation.history import Outcome
from benchmarks.router_simulation.job import EngineSpec
from benchmarks.router_simulation.requests import Conversation, SimRequest, Text
from benchmarks.router_simulation.simulation import Scenario, Simulation
from quire.options.router import RouterOptions

SECONDS = 2.0
STOPS = (Kind.KILL, Kind.FREEZE, Kind.DRAIN, Kind.FAIL_STEP)
POLICIES = ("prefix", "prefix", "prefix", "least_loaded", "round_robin", "power_of_two", "consistent_hash", "random")


def small_scenario(seed: int) -> Scenario:
    random = Random(seed)
    engines = [
        EngineSpec(
            seconds_per_step=random.choice((0.01, 0.02)), max_num_seqs=random.choice((2, 4, 8)),
            max_num_batched_tokens=random.choice((64, 256)), num_blocks=random.choice((32, 64, 256)),
            tokens_per_delta=random.choice((3, 8)),
        )
        for _ in range(random.randint(3, 5))
    ]  # fmt: skip
    conversations = []
    for number in range(random.randint(20, 30)):
        text = Text().add(random.randrange(3), random.choice((16, 40, 100)))
        text.add(1000 + number, random.randint(1, 60))
        prompt_tokens, output_tokens = text.num_tokens, random.randint(1, 150)
        request = SimRequest(
            number, text.add(2000 + number, output_tokens).keys, prompt_tokens, output_tokens,
            session_id=f"s{number % 5}", tenant=f"t{number % 3}",
            timeout_seconds=random.choice((0.0,) * 15 + (3.0,)),
            abort_seconds=random.choice((0.0,) * 7 + (random.uniform(0.001, 2),)),
        )  # fmt: skip
        conversations.append(Conversation(random.random(), [(0.0, request)]))
    return Scenario(
        conversations, SECONDS, engines, RouterOptions(routing_policy=random.choice(POLICIES)), seed,
        replicas=random.choice((1, 1, 2)),
        faults=random_faults(random, len(engines), random.randint(1, 8), SECONDS * 2),
    )  # fmt: skip


def check(scenario: Scenario, simulation: Simulation) -> int:
    """Fails unless every request ended as it should; returns how many ended with an error."""
    errors = 0
    assert len(simulation.history.outcomes) == len(simulation.requests)
    for request in simulation.requests:
        outcome = simulation.history.outcomes[request.number]
        assert outcome.finals == (not outcome.aborted), (request.number, outcome)
        complete = not outcome.aborted and not outcome.error
        stop = request.output_tokens if complete else len(outcome.token_ids)
        assert outcome.token_ids == request.tokens(0, stop), (request.number, outcome)
        if outcome.error:
            errors += 1
            assert justified(scenario, request, outcome), (request.number, outcome, scenario.faults)
    for replica in simulation.replicas:
        assert not replica.leaked(), replica.leaked()
    return errors


def justified(scenario: Scenario, request: SimRequest, outcome: Outcome) -> bool:
    """Returns whether the schedule of faults explains a request's error."""
    struck = {f"w{fault.engine}" for fault in scenario.faults if fault.at <= outcome.ended and fault.kind in STOPS}
    if outcome.error == "DEADLINE_EXCEEDED":
        return request.timeout_seconds > 0 and outcome.ended >= outcome.arrived + request.timeout_seconds
    if outcome.error == "ENGINE_FAULT":  # a crash suspect: both workers that ran it died
        return len(outcome.workers) > 1 and struck.issuperset(outcome.workers)
    if outcome.error == "UNAVAILABLE":  # no worker was there for as long as the request may wait
        return len(struck) == len(scenario.engines)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 250, 50))
def test_random_faults(first: int) -> None:
    requests = errors = migrated = 0
    for seed in range(first, first + 50):
        scenario = small_scenario(seed)
        simulation = Simulation(scenario)
        outcomes = simulation.run().outcomes.values()
        try:
            errors += check(scenario, simulation)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        requests += len(outcomes)
        migrated += sum(len(outcome.workers) > 1 for outcome in outcomes)
    assert migrated > 0.1 * requests, "the faults do not reach the requests any more"
    assert errors < 0.03 * requests


def test_same_seed_same_history() -> None:
    digests = [Simulation(small_scenario(seed)).run().digest for seed in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]
