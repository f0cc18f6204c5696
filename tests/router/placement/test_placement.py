"""Placement over whole fleets matches a brute-force search that looks at every worker by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from benchmarks.router_cost import SilentWorker
from benchmarks.router_simulation.clock import EventClock
from quire.block_hash import block_keys
from quire.errors import Unavailable
from quire.options.router import PlacementCostOptions, RouterOptions
from quire.v1 import common_pb2
from router.clock import Clock
from router.core import RouterCore
from router.metrics import RouterMetrics
from router.placement.decisions import KEPT_CANDIDATES, Decision
from router.workers.base import Worker
from router.workers.speed import DEFAULT_SECONDS_PER_STEP

_BLOCK_SIZE = 16
_PROMPTS = [[prompt * 1000 + block for block in range(32)] for prompt in range(1, 6)]
_HOST_WEIGHT = 1 - PlacementCostOptions().host_tier_weight


class Fleet:
    """A router core with workers that do nothing and whose loads and caches are random."""

    def __init__(
        self, count: int, seed: int, options: RouterOptions = RouterOptions(), clock: Clock | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.workers: list[SilentWorker] = []
        clock = clock or asyncio.get_running_loop()
        self.core = RouterCore(options, lambda: self.workers, clock, RouterMetrics(CollectorRegistry()), self.random)
        self.session = self.core.dispatcher.open_session()
        self.held: dict[str, tuple[set[int], set[int]]] = {}
        for _ in range(count):
            self.add()

    def add(self) -> SilentWorker:
        worker = SilentWorker(len(self.held), self.core.index)
        info = common_pb2.ModelInfo(
            served_model_names=["bench"], block_size=_BLOCK_SIZE, max_num_seqs=8, max_num_batched_tokens=512,
            fingerprint=self.random.choice(["one", "other"]),
        )  # fmt: skip
        worker.learn(info)
        self.workers.append(worker)
        device, host = (self.random.choice(_PROMPTS)[: self.random.randrange(32)] for _ in range(2))
        self.core.index.store(worker.blocks, device, on_host=False)
        self.core.index.store(worker.blocks, host, on_host=True)
        self.held[worker.address] = set(device), set(host)
        self.beat(worker)
        return worker

    def beat(self, worker: Worker) -> None:
        """Sends a random heartbeat, at times with more load than the worker has room for."""
        worker.load.heartbeat(
            common_pb2.EngineLoad(
                running_sequences=self.random.randrange(16), waiting_prefill_tokens=self.random.randrange(2500),
                used_kv_blocks=self.random.randrange(101), total_kv_blocks=100,
            ), 0.0,
        )  # fmt: skip

    def place(self, number: int, keys: Sequence[int]) -> Decision | None:
        """Places a request whose prompt fills the blocks; None where no worker has room."""
        length = len(keys) * _BLOCK_SIZE
        self.core.dispatcher.start(
            self.session, number,
            common_pb2.Generation(
                request_id=str(number), prompt_token_ids=[1] * length, prompt_block_size=_BLOCK_SIZE,
                prompt_block_keys=keys,
            ),
        )  # fmt: skip
        return self.core.table.decisions.find(str(number))

    def costs(self, keys: Sequence[int]) -> dict[str, float]:
        """Cost of each worker with room."""
        return {worker.address: self._cost(worker, keys) for worker in self.workers if has_room(worker)}

    def _cost(self, worker: Worker, keys: Sequence[int]) -> float:
        device, host = self.held[worker.address]
        load, speed = worker.load, worker.load.speed
        most = len(keys) - 1
        on_device = min(most, leading(keys, device))
        in_host = min(most, leading(keys, device | host)) - on_device
        tokens = (len(keys) - on_device - _HOST_WEIGHT * in_host) * _BLOCK_SIZE
        prefill, there = speed.seconds_per_token * max(1.0, tokens), load.sequences + 1
        decode = 128 * (speed.seconds_per_step + speed.seconds_per_token * there)
        own = speed.seconds_per_token * load.prefill_tokens + prefill + decode * (1 + max(0, there - 8) / 8)
        cost = own + prefill + 0.1 * load.sequences * (prefill + 128 * speed.seconds_per_token)
        return cost * 2 if load.kv_usage > 0.95 else cost


def leading(keys: Sequence[int], held: set[int]) -> int:
    return next((count for count, key in enumerate(keys) if key not in held), len(keys))


def has_room(worker: Worker) -> bool:
    return worker.load.sequences < 13 and worker.load.prefill_tokens <= 4 * 512


@pytest.mark.parametrize("count", [1, 20, 90])
async def test_the_cheapest_of_those_with_room_is_found_while_loads_and_the_fleet_change(count: int) -> None:
    fleet = Fleet(count, seed=count)
    for number in range(30):
        keys = [*fleet.random.choice(_PROMPTS), number]  # no other request shares the last block
        keys = keys[fleet.random.choice((0, 0, 32)) :]
        costs = fleet.costs(keys)
        decision = fleet.place(number, keys)
        assert (decision is not None) == bool(costs)
        if decision is not None:
            assert costs[decision.chosen] == pytest.approx(min(costs.values()), rel=1e-9)
            kept = dict(zip(decision.addresses, decision.costs(PlacementCostOptions()), strict=True))
            assert kept == pytest.approx({address: costs[address] for address in kept}, rel=1e-9)
            assert sorted(kept.values()) == pytest.approx(sorted(costs.values())[:KEPT_CANDIDATES], rel=1e-9)
            assert decision.would_choose(PlacementCostOptions()) in decision.addresses
        fleet.core.dispatcher.abort(fleet.session, number)
        fleet.beat(fleet.random.choice(fleet.workers))
        if number % 10 == 0:
            fleet.add()
            fleet.core.on_change()
        if number % 10 == 5 and len(fleet.workers) > 1:
            fleet.workers.remove(fleet.random.choice(fleet.workers))
            fleet.core.on_change()


@pytest.mark.parametrize("policy", ["prefix", "least_loaded"])
async def test_room_goes_to_the_waiting_request_that_the_worker_has_cached(policy: str) -> None:
    """Each worker has the prefix of half of the requests. Only a policy that uses caches picks by them; whoever came
    first yields sixteen times."""
    fleet = Fleet(2, 0, RouterOptions(routing_policy=policy))
    prefixes = [[index * 100 + block for block in range(32)] for index in (10, 11)]
    for worker, keys in zip(fleet.workers, prefixes, strict=True):
        fleet.core.index.store(worker.blocks, keys, on_host=False)
        worker.load.heartbeat(common_pb2.EngineLoad(running_sequences=13, total_kv_blocks=100), 0.0)
    for number, prefix in enumerate([0, 0, 1, 1, *[1] * 20]):
        assert fleet.place(number, [*prefixes[prefix], number]) is None

    def give_room(worker: Worker) -> int:
        """Returns the request that uses it."""
        waiting = {number for number, stream in fleet.session.streams.items() if stream.worker is None}
        worker.load.heartbeat(common_pb2.EngineLoad(running_sequences=12, total_kv_blocks=100), 0.0)
        fleet.core.dispatcher.waiting.call()
        placed = {number for number in waiting if fleet.session.streams[number].worker is worker}
        worker.load.heartbeat(common_pb2.EngineLoad(running_sequences=13, total_kv_blocks=100), 0.0)
        assert len(placed) == 1
        fleet.core.dispatcher.abort(fleet.session, min(placed))
        return min(placed)

    picked = [give_room(fleet.workers[1]) for _ in range(19)]
    in_order = [*range(19)]
    assert picked == ([*range(2, 18), 0, 1, 18] if policy == "prefix" else in_order)


async def test_what_one_worker_tells_of_its_steps_holds_for_others_of_its_make_at_once() -> None:
    fleet = Fleet(20, seed=2)
    told = fleet.workers[0]
    fleet.place(0, _PROMPTS[0])
    for steps in (0, 10):
        times = common_pb2.Histogram(counts=[steps], sum=2.0 * steps)
        counters = common_pb2.EngineCounters(computed_tokens=steps, model_execute_milliseconds=times)
        told.load.heartbeat(common_pb2.EngineLoad(counters=counters, total_kv_blocks=100), 0.25)
    decision = fleet.place(1, _PROMPTS[1])
    speeds = {worker.load.speed.seconds_per_step for worker in fleet.workers if worker.make == told.make}
    assert speeds == {told.load.speed.seconds_per_step}
    assert max(speeds) < 0.002
    others = {worker.load.speed.seconds_per_step for worker in fleet.workers if worker.make != told.make}
    assert others == {DEFAULT_SECONDS_PER_STEP}
    costs = fleet.costs(_PROMPTS[1])
    assert decision is not None
    assert costs[decision.chosen] == pytest.approx(min(costs.values()), rel=1e-9)


async def test_one_that_moves_goes_to_another_of_the_same_make_while_there_is_one_with_room() -> None:
    fleet = Fleet(40, seed=1)
    for number in range(5):
        fleet.place(number, _PROMPTS[0])
        stream = fleet.session.streams[number]
        left, with_room = stream.worker, fleet.costs(_PROMPTS[0])
        assert left is not None
        fleet.core.on_lost(left, Unavailable("it is lost"))
        assert stream.worker is not None and stream.worker is not left
        assert stream.worker.make == left.make
        assert stream.worker.address in with_room


async def test_a_decision_tells_how_long_its_request_has_waited_over_all_attempts_and_not_how_long_it_ran() -> None:
    clock = EventClock()
    fleet = Fleet(2, seed=1, clock=clock)

    def advance(seconds: float, running_sequences: int) -> None:
        until = clock.time() + seconds
        clock.call_at(until, int)
        clock.run(lambda: clock.time() >= until)
        for worker in fleet.workers:
            load = common_pb2.EngineLoad(running_sequences=running_sequences, total_kv_blocks=100)
            worker.load.heartbeat(load, clock.time())
        fleet.core.on_change()

    def decided() -> tuple[int, float]:
        decision = fleet.core.table.decisions.find("0")
        assert decision is not None
        return decision.attempt, decision.queued_seconds

    def lose() -> None:
        stream = fleet.session.streams[0]
        assert stream.worker is not None
        fleet.core.table.mark_started(stream)  # otherwise the third attempt would be the last
        fleet.core.on_lost(stream.worker, Unavailable("it is lost"))

    advance(1, running_sequences=0)
    fleet.place(0, _PROMPTS[0])
    assert decided() == (1, 0.0)
    advance(5, running_sequences=0)  # it runs
    lose()
    assert decided() == (2, 0.0)
    for attempt, waited in ((3, 3.0), (4, 6.0)):
        advance(5, running_sequences=100)
        lose()
        advance(3, running_sequences=0)  # it has waited in between
        assert decided() == (attempt, waited)
    fleet.core.dispatcher.abort(fleet.session, 0)


@pytest.mark.parametrize("held", [0, 1])
async def test_an_adapter_has_other_blocks_where_its_weights_are_others(held: int) -> None:
    """Cached blocks match only the revision they were computed with, whichever revision the caller's keys are of."""
    fleet = Fleet(2, seed=1)
    prompt = list(range(_BLOCK_SIZE * 20))
    keys = [block_keys(prompt, _BLOCK_SIZE, adapter=revision) for revision in ("old", "new")]
    for worker, revision in zip(fleet.workers, ("old", "new"), strict=True):
        info = common_pb2.ModelInfo(
            served_model_names=["bench"], block_size=_BLOCK_SIZE, max_num_seqs=8, max_num_batched_tokens=512,
            adapters=[common_pb2.AdapterInfo(name="tuned", revision=revision)],
        )  # fmt: skip
        worker.learn(info)
        worker.load.heartbeat(common_pb2.EngineLoad(total_kv_blocks=100), 0.0)
    fleet.core.index.store(fleet.workers[held].blocks, keys[held], on_host=False)
    fleet.core.on_change()
    for number, given in enumerate(keys):
        request = common_pb2.Generation(
            request_id=str(number), model="tuned", prompt_token_ids=prompt, prompt_block_size=_BLOCK_SIZE,
            prompt_block_keys=given,
        )  # fmt: skip
        fleet.core.dispatcher.start(fleet.session, number, request)
        decision = fleet.core.table.decisions.find(str(number))
        assert decision is not None and decision.chosen == fleet.workers[held].address
        known = dict(zip(decision.addresses, decision.candidates.cached_tokens, strict=True))
        assert known == {worker.address: 19 * _BLOCK_SIZE * (worker is fleet.workers[held]) for worker in fleet.workers}
        fleet.core.dispatcher.abort(fleet.session, number)


async def test_an_alias_of_a_model_and_its_adapter_finds_the_blocks_of_either() -> None:
    """The caller's keys are those of the target with the larger share."""
    fleet = Fleet(1, seed=1, options=RouterOptions(model_alias=("canary=tuned:2,bench:1",)))
    (worker,) = fleet.workers
    prompt = list(range(_BLOCK_SIZE * 20))
    worker.learn(
        common_pb2.ModelInfo(
            served_model_names=["bench"], block_size=_BLOCK_SIZE, max_num_seqs=8, max_num_batched_tokens=512,
            adapters=[common_pb2.AdapterInfo(name="tuned", revision="new")],
        )
    )  # fmt: skip
    worker.load.heartbeat(common_pb2.EngineLoad(total_kv_blocks=100), 0.0)
    fleet.core.index.store(worker.blocks, block_keys(prompt, _BLOCK_SIZE), on_host=False)
    fleet.core.on_change()
    keys, found = block_keys(prompt, _BLOCK_SIZE, adapter="new"), set[tuple[str, int]]()
    for number in range(20):
        request = common_pb2.Generation(
            request_id=str(number), model="canary", prompt_token_ids=prompt, prompt_block_size=_BLOCK_SIZE,
            prompt_block_keys=keys,
        )  # fmt: skip
        fleet.core.dispatcher.start(fleet.session, number, request)
        decision = fleet.core.table.decisions.find(str(number))
        assert decision is not None
        (known,) = decision.candidates.cached_tokens
        found.add((fleet.session.streams[number].request.model, int(known)))
        fleet.core.dispatcher.abort(fleet.session, number)
    assert found == {("bench", 19 * _BLOCK_SIZE), ("tuned", 0)}
