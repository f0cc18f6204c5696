"""What the gateway tells routers for placement, and which router it picks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway.services import routers as routers_module
from gateway.services.routers import pick
from quire.block_hash import block_keys
from quire.v1 import common_pb2
from tests.gateway.conftest import Replicas, StartReplicas
from tests.support.fake_router import BLOCK_SIZE
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "nine letters and then some"
KEYS = ("key-one", "key-two")


@pytest_asyncio.fixture(loop_scope="module")
async def alone(start_replicas: StartReplicas) -> AsyncIterator[Replicas]:
    """A gateway with a single router."""
    async with start_replicas(1) as replicas:
        yield replicas


async def ask(
    replicas: Replicas, path: str = "/v1/completions", headers: dict[str, str] | None = None, **fields: Any
) -> common_pb2.Generation:
    """What the router receives for a request."""
    body = {"max_tokens": 1} | ({"prompt": "A"} if "completions" in path and "chat" not in path else {}) | fields
    response = await replicas.gateway.post(path, body, **(headers or {}))
    assert response.status_code == 200, response.text
    return replicas.routers[0].state.started[-1]


def check_keys(generation: common_pb2.Generation) -> None:
    token_ids = list(generation.prompt_token_ids)
    assert len(token_ids) >= BLOCK_SIZE
    assert generation.prompt_block_size == BLOCK_SIZE
    assert list(generation.prompt_block_keys) == block_keys(token_ids, BLOCK_SIZE, generation.cache_salt)


async def test_block_keys(alone: Replicas) -> None:
    check_keys(await ask(alone, prompt=TEXT))
    check_keys(await ask(alone, prompt=[TEXT, TEXT[1:]]))
    salted = await ask(alone, prompt=TEXT, cache_salt="pepper")
    assert salted.cache_salt == "pepper"
    check_keys(salted)
    check_keys(await ask(alone, "/v1/chat/completions", messages=[{"role": "user", "content": TEXT}]))


async def test_block_keys_under_the_salt_of_a_key(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, api_key=KEYS) as replicas:
        generation = await ask(replicas, headers={"authorization": "Bearer key-one"}, prompt=TEXT, cache_salt="s")
        assert len(generation.cache_salt) == 64
        check_keys(generation)


@pytest.mark.parametrize(
    "fields",
    [{"prompt": [5, 6, 7, 8, 9]}, {"prompt": "A"}, {"prompt": TEXT, "truncate_prompt_tokens": 9}],
    ids=["token ids", "less than a block", "cut at its beginning"],
)
async def test_prompts_without_keys(alone: Replicas, fields: dict[str, Any]) -> None:
    generation = await ask(alone, **fields)
    assert not generation.prompt_block_keys
    assert generation.prompt_block_size == 0


async def test_a_prompt_that_fits_keeps_its_keys(alone: Replicas) -> None:
    check_keys(await ask(alone, prompt=TEXT, truncate_prompt_tokens=-1))


async def test_seeds(alone: Replicas) -> None:
    seeds = [(await ask(alone)).sampling.seed for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (await ask(alone, seed=-5)).sampling.seed == -5
    for greedy in (0, 1e-38, 9e-6):
        assert not (await ask(alone, temperature=greedy)).sampling.HasField("seed")
    await ask(alone, prompt=["A", "A"])
    first, second = (generation.sampling.seed for generation in alone.routers[0].state.started[-2:])
    assert first != second  # like two separate requests
    answer = await alone.gateway.complete(n=2)
    assert str(alone.routers[0].state.started[-1].sampling.seed) not in str(answer)


async def test_a_gateway_with_a_seed_draws_the_same_again(start_replicas: StartReplicas) -> None:
    found = []
    for seed in (7, 7, 8):
        async with start_replicas(1, seed=seed) as replicas:
            found.append([(await ask(replicas, **fields)).sampling.seed for fields in ({}, {"seed": 3}, {}, {"n": 2})])
    assert found[0] == found[1] != found[2]
    assert len(set(found[0])) == 4


async def test_tenants_by_key(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, api_key=KEYS) as replicas:
        tenants = [
            (await ask(replicas, headers={"authorization": f"Bearer {key}", "x-tenant": "other"})).tenant
            for key in (*KEYS, KEYS[0])
        ]
        assert tenants[0] == tenants[2] != tenants[1]
        assert all(len(tenant) == 16 and int(tenant, 16) for tenant in tenants)


async def test_tenants_by_header(alone: Replicas) -> None:
    named = [(await ask(alone, headers={"x-tenant": name})).tenant for name in ("acme", "other", "acme")]
    assert named[0] == named[2] != named[1]
    assert len(named[0]) == 16
    assert (await ask(alone)).tenant == ""
    assert (await ask(alone, headers={"x-tenant": "acme"})).cache_salt == ""  # fairness tenants may share prefixes


async def test_sessions(alone: Replicas) -> None:
    fields = {"prompt_cache_key": "by key", "user": "by user"}
    assert (await ask(alone, session_id="by id", **fields)).session_id == "by id"
    assert (await ask(alone, headers={"x-session-id": "by-header"}, **fields)).session_id == "by-header"
    assert (await ask(alone, **fields)).session_id == "by key"
    assert (await ask(alone, user="by user")).session_id == "by user"
    assert (await ask(alone)).session_id == ""
    messages = [{"role": "user", "content": "A"}]
    assert (await ask(alone, "/v1/chat/completions", messages=messages, **fields)).session_id == "by key"


async def test_the_priority_of_a_proxy_takes_precedence(alone: Replicas) -> None:
    assert (await ask(alone, headers={"x-vllm-priority": "-5"}, priority=3)).priority == -5
    assert (await ask(alone, priority=3)).priority == 3
    for wrong, part in (("soon", "whole number"), ("9999999999", "at most")):
        response = await alone.gateway.post("/v1/completions", {"prompt": "A"}, **{"x-vllm-priority": wrong})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "x-vllm-priority")
        assert part in error["message"]


@pytest.mark.parametrize(
    ("headers", "fields", "parameter", "part"),
    [
        ({"x-tenant": "no spaces"}, {}, "x-tenant", "A-Z"),
        ({"x-tenant": "x" * 129}, {}, "x-tenant", "128"),
        ({"x-session-id": "what?"}, {}, "x-session-id", "A-Z"),
        ({}, {"user": "x" * 513}, "user", "513"),
        ({"x-session-id": "fine"}, {"prompt_cache_key": "x" * 513}, "prompt_cache_key", "512"),
        ({}, {"prompt_cache_key": 5}, "prompt_cache_key", "str"),
    ],
)
async def test_names_that_are_refused(
    alone: Replicas, headers: dict[str, str], fields: dict[str, Any], parameter: str, part: str
) -> None:
    response = await alone.gateway.post("/v1/completions", {"prompt": "A"} | fields, **headers)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, parameter)
    assert part in error["message"]
    assert not any(value in error["message"] for value in (*headers.values(), *map(str, fields.values())))


@pytest.mark.slow
async def test_a_conversation_stays_with_its_router(
    start_replicas: StartReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.rpc.session.LATE_SECONDS", 60.0)  # so that a busy machine makes no router count as late
    async with start_replicas(3) as replicas:
        for name in range(40):
            before = replicas.started
            for _ in range(2):
                await replicas.gateway.complete(user=f"user {name}")
            assert sorted(now - then for now, then in zip(replicas.started, before, strict=True)) == [0, 0, 2]
        assert all(replicas.started)  # the chance that one of three gets none of 40 names is below one in a million
        before = replicas.started
        for _ in range(4):
            await replicas.gateway.complete(prompt=TEXT)
        assert max(now - then for now, then in zip(replicas.started, before, strict=True)) == 4


async def test_other_requests_go_to_the_least_busy_router(start_replicas: StartReplicas) -> None:
    async with start_replicas(3) as replicas:
        for router in replicas.routers:
            router.state.hold = 1
        body = {"prompt": [5], "max_tokens": 2}
        requests = []
        for number in range(6):
            requests.append(asyncio.create_task(replicas.gateway.post("/v1/completions", body)))
            await eventually(lambda number=number: sum(replicas.started) == number + 1)
        assert replicas.started == [2, 2, 2]
        for stream in [stream for router in replicas.routers for stream in router.live]:
            stream.hold = None
        assert [response.status_code for response in await asyncio.gather(*requests)] == [200] * 6


async def test_new_requests_go_to_routers_that_do_not_drain(start_replicas: StartReplicas) -> None:
    async with start_replicas(2) as replicas:
        sessions = replicas.gateway.context.pipeline.router_streams.routers
        for leaving, staying in (replicas.routers, replicas.routers[::-1]):
            leaving.state.draining, staying.state.draining = True, False
            address = leaving.address
            await eventually(lambda address=address: [s.address for s in sessions if s.draining] == [address])
            before = len(leaving.state.started)
            for name in range(4):
                await replicas.gateway.complete(user=f"user {name}")
            assert len(leaving.state.started) == before
        replicas.routers[0].state.draining = replicas.routers[1].state.draining = True
        await eventually(lambda: all(session.draining for session in sessions))
        await replicas.gateway.complete()  # one that has not stopped yet may still take it


@dataclass
class Place:
    """What `pick` looks at."""

    address: str
    live: int = 0
    up: bool = True
    has_workers: bool = True
    leaving: bool = False


async def test_picking() -> None:
    places = [Place(f"router-{number}:1") for number in range(4)]
    chosen: Place = pick(places, "key", ())  # type: ignore[arg-type,assignment]  # stands in for a session
    others = [place for place in places if place is not chosen]
    assert pick(places[::-1], "key", ()) is chosen  # type: ignore[arg-type]
    assert pick(places, "key", (chosen.address,)) in others  # type: ignore[arg-type]
    chosen.up = False
    assert pick(places, "key", ()) in others  # type: ignore[arg-type]
    chosen.up = True
    chosen.live = routers_module._SLACK  # far more than its share, but within the slack
    assert pick(places, "key", ()) is chosen  # type: ignore[arg-type]
    chosen.live = 100
    for place in others:
        place.live = 50
    others[1].live = 49
    assert pick(places, "key", ()) is others[1]  # type: ignore[arg-type]
    assert pick(places, "", ()) is others[1]  # type: ignore[arg-type]
    others[1].leaving = True
    assert pick(places, "", ()) in (others[0], others[2])  # type: ignore[arg-type]
    others[1].leaving = False
    for place in places:
        place.has_workers = place is chosen
    assert pick(places, "key", ()) is chosen  # type: ignore[arg-type]
    chosen.has_workers = False
    assert pick(places, "key", ()) is others[1]  # type: ignore[arg-type]
    for place in places:
        place.up = False
    assert pick(places, "key", ()) is None  # type: ignore[arg-type]
