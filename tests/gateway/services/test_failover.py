"""Streams whose router is lost continue at another one, and clients notice only a delay."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from quire.errors import Overloaded, Unavailable
from tests.gateway.conftest import Replicas, StartReplicas
from tests.support.fake_router import FakeRouter
from tests.support.gateway_stack import Gateway
from tests.support.stream_reader import Reader
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

COMPLETION = {"prompt": "A", "max_tokens": 40, "return_token_ids": True}
CHAT = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 40, "return_token_ids": True}
USAGE = {"stream_options": {"include_usage": True}}


async def spell(gateway: Gateway, *texts: str) -> list[list[int]]:
    """Returns the token ids of each text."""
    return [(await gateway.post("/tokenize", {"prompt": text})).json()["tokens"] for text in texts]


async def hold(
    replicas: Replicas, count: int, path: str, body: dict[str, Any]
) -> tuple[Reader, FakeRouter, FakeRouter]:
    """A stream whose client has received `count` tokens of each choice, its router, and the other router."""
    for router in replicas.routers:
        router.state.hold = count
    reader = Reader(replicas.gateway, path, body)
    await eventually(lambda: any(router.holding for router in replicas.routers), "no router has the stream")
    owner, other = replicas.owner()
    sent = sum(position for stream in owner.live for position in stream.positions)
    await eventually(lambda: reader.tokens == sent, "the client does not get what was sent")
    return reader, owner, other


@pytest.mark.parametrize(
    ("path", "body", "texts", "held"),
    [
        ("/v1/completions", COMPLETION | USAGE, ["one two three"], 4),
        ("/v1/chat/completions", CHAT | USAGE, ["one two three"], 1),
        ("/v1/completions", COMPLETION | USAGE | {"n": 2}, ["one two three", "four"], 2),
        # One choice ends before the router is lost.
        ("/v1/chat/completions", CHAT | USAGE | {"n": 2}, ["one two three", "ab"], 3),
        ("/v1/completions", COMPLETION | USAGE | {"logprobs": 1}, ["one two three"], 4),
        ("/v1/chat/completions", CHAT | USAGE | {"logprobs": True, "top_logprobs": 1}, ["one two three"], 4),
        ("/v1/completions", COMPLETION | USAGE | {"prompt": ["A", "B"], "user": "one router's"}, ["one two three"], 4),
    ],
)
async def test_a_killed_router(
    start_replicas: StartReplicas, path: str, body: dict[str, Any], texts: list[str], held: int
) -> None:
    async with start_replicas() as replicas:
        outputs = await spell(replicas.gateway, *texts)
        for router in replicas.routers:
            router.state.outputs = outputs
        undisturbed = await Reader(replicas.gateway, path, body).result()
        assert "".join(choice["text"] for choice in undisturbed[0].values()).startswith(texts[0])
        reader, owner, other = await hold(replicas, held, path, body)
        sent = [generation for generation in owner.state.started if not generation.progress][-1]
        streams = len(owner.live)
        await owner.close()
        assert await reader.result() == undisturbed
        assert replicas.moved == streams
        assert (await replicas.gateway.client.get("/health")).status_code == 200
        moved = other.state.started[-1]
        assert [list(choice.token_ids) for choice in moved.progress] == [ids[:held] for ids in outputs]
        assert [choice.finished for choice in moved.progress] == [len(ids) <= held for ids in outputs]
        assert 0 < moved.timeout_ms <= sent.timeout_ms
        del moved.progress[:]
        moved.timeout_ms = sent.timeout_ms
        assert moved == sent


@pytest.mark.parametrize("held", [1, 2, 3, 4, 5])
async def test_a_stop_string_across_the_cut(start_replicas: StartReplicas, held: int) -> None:
    async with start_replicas() as replicas:
        for router in replicas.routers:
            router.state.outputs = await spell(replicas.gateway, "abSTOPcdef")
        body = COMPLETION | USAGE | {"stop": ["STOP"]}
        undisturbed = await Reader(replicas.gateway, "/v1/completions", body).result()
        reader, owner, other = await hold(replicas, held, "/v1/completions", body)
        await owner.close()
        choices, usage = await reader.result()
        assert (choices, usage) == undisturbed
        assert (choices[0]["text"], choices[0]["finish"], choices[0]["stop"]) == ("ab", "stop", "STOP")
        await eventually(lambda: not other.live, "the second router is not told to stop")


async def test_a_choice_that_a_stop_string_has_ended_is_finished_for_the_next_router(
    start_replicas: StartReplicas,
) -> None:
    async with start_replicas() as replicas:
        for router in replicas.routers:
            router.state.outputs = await spell(replicas.gateway, "abXcdef", "ghijkl")
        body = COMPLETION | {"stop": ["X"], "n": 2, "return_token_ids": True}
        undisturbed = await Reader(replicas.gateway, "/v1/completions", body).result()
        reader, owner, other = await hold(replicas, 3, "/v1/completions", body)
        await owner.close()
        assert await reader.result() == undisturbed
        assert [choice.finished for choice in other.state.started[-1].progress] == [True, False]


@pytest.mark.parametrize("held", [1, 2, 3])
async def test_a_character_across_the_cut(start_replicas: StartReplicas, held: int) -> None:
    async with start_replicas() as replicas:
        (output,) = await spell(replicas.gateway, "\U0001f680!")
        assert len(output) == 5  # the rocket takes four tokens
        for router in replicas.routers:
            router.state.outputs = [output]
        reader, owner, _ = await hold(replicas, held, "/v1/completions", COMPLETION)
        await owner.close()
        choices, _ = await reader.result()
        assert choices[0]["text"] == "\U0001f680!"


async def test_an_answer_in_one_piece_with_a_scored_prompt(start_replicas: StartReplicas) -> None:
    body = {"prompt": "AB", "max_tokens": 40, "logprobs": 1, "prompt_logprobs": 0}
    async with start_replicas(enable_prompt_tokens_details=True) as replicas:
        gateway = replicas.gateway
        undisturbed = (await gateway.post("/v1/completions", body)).json()
        for router in replicas.routers:
            router.state.hold = 2
        answer = asyncio.create_task(gateway.post("/v1/completions", body))
        await eventually(lambda: any(router.holding for router in replicas.routers))
        await replicas.owner()[0].close()
        response = (await answer).json()
        assert response["choices"] == undisturbed["choices"]
        assert response["usage"] == undisturbed["usage"]
        assert response["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        assert replicas.moved == 1
        metrics = (await gateway.client.get("/metrics")).text
        assert re.search(r"^quire_gateway_streams_moved_total 1\.0$", metrics, re.M)


async def test_a_frozen_router(start_replicas: StartReplicas) -> None:
    async with start_replicas() as replicas:
        gateway = replicas.gateway
        undisturbed = await Reader(gateway, "/v1/completions", COMPLETION).result()
        reader, owner, other = await hold(replicas, 3, "/v1/completions", COMPLETION)
        owner.state.frozen = True
        owner.live[0].hold = None
        assert await reader.result() == undisturbed
        assert replicas.moved == 1
        other.state.hold = None
        # It still accepts connections, but counts as lost until it sends something.
        for _ in range(4):
            await gateway.complete()
        assert len(other.state.started) == 5
        assert replicas.moved == 1
        assert (await gateway.client.get("/health")).status_code == 200
        owner.state.frozen = False
        await eventually(lambda: not owner.live, "the first router goes on with what has moved")


async def test_frames_of_a_router_that_has_lost_the_stream_are_ignored(start_replicas: StartReplicas) -> None:
    async with start_replicas() as replicas:
        refuser, taker = replicas.routers  # without a key, the least busy router is asked; on a tie, the first
        refuser.state.refusal = Unavailable("Draining.")
        taker.state.hold = 2
        reader = Reader(replicas.gateway, "/v1/completions", COMPLETION | {"prompt": [7, 8, 9]})
        await eventually(lambda: taker.holding and reader.tokens == 2)
        assert replicas.started == [1, 1]
        (session,) = refuser.outboxes
        for stream_id in (1, 2, taker.live[0].stream_id):  # its id at the old router and its id at the new one
            session.post().deltas.add(stream_id=stream_id, token_ids=[40])
            session.post().deltas.add(stream_id=stream_id, token_ids=[41], is_final=True)
        # A session delivers in order: once what follows has arrived, so have these frames.
        refuser.state.refusal, taker.state.refusal = None, Unavailable("Draining.")
        await replicas.gateway.complete()
        taker.live[0].hold = None
        choices, _ = await reader.result()
        assert choices[0]["tokens"] == [32, 33, 34, 35, 36, 37]


async def test_a_router_that_refuses(start_replicas: StartReplicas) -> None:
    """A router that drains or knows no worker is passed over for the next one."""
    async with start_replicas(3) as replicas:
        for router in replicas.routers[:2]:
            router.state.refusal = Unavailable("Draining.")
        await replicas.gateway.complete()
        assert replicas.started == [1, 1, 1]
        replicas.routers[2].state.refusal = Unavailable("Draining too.")
        response = await replicas.gateway.post("/v1/completions", COMPLETION)
        assert (response.status_code, response.json()["error"]["message"][:8]) == (503, "Draining")
        assert replicas.started == [2, 2, 2]
        for router in replicas.routers:
            router.state.refusal = Overloaded("Full.")
        response = await replicas.gateway.post("/v1/completions", COMPLETION)
        assert (response.status_code, response.json()["error"]["message"]) == (503, "Full.")
        assert sum(replicas.started) == 7  # a full router speaks for all workers: no other is asked


@pytest.mark.parametrize("stream", [True, False])
async def test_no_router_is_up(start_replicas: StartReplicas, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.services.router_streams.ROUTER_SECONDS", 1.0)
    async with start_replicas() as replicas:
        reader, *_ = await hold(replicas, 3, "/v1/completions", COMPLETION)
        await close_sessions(replicas)
        response = await replicas.gateway.post("/v1/completions", COMPLETION | {"stream": stream})
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert "router cannot be reached" in response.json()["error"]["message"]
        await asyncio.wait_for(reader.task, WAIT_SECONDS)
        assert reader.error is not None
        assert reader.error["code"] == 503
        assert "incomplete" in reader.error["message"]
        health = await replicas.gateway.client.get("/health")
        assert (health.status_code, "router" in health.text) == (503, True)


async def test_a_router_that_comes_in_time(start_replicas: StartReplicas) -> None:
    async with start_replicas() as replicas:
        gateway = replicas.gateway
        undisturbed = await Reader(gateway, "/v1/completions", COMPLETION).result()
        moved, *_ = await hold(replicas, 3, "/v1/completions", COMPLETION)
        await close_sessions(replicas)
        new = Reader(gateway, "/v1/completions", COMPLETION)
        await eventually(lambda: gateway.context.pipeline.num_live == 2)
        assert gateway.context.pipeline.router_streams.num_placed == 0
        for router in replicas.routers:
            router.state.hold = None
            router.state.closed = False
        assert await moved.result() == undisturbed
        assert await new.result() == undisturbed
        assert replicas.moved in (1, 2)  # 2 if it went through the other router, whose session ended later


@pytest.mark.parametrize("moved", [True, False])
async def test_a_client_that_goes_while_its_stream_waits(start_replicas: StartReplicas, moved: bool) -> None:
    async with start_replicas() as replicas:
        gateway, started = replicas.gateway, 0
        if moved:
            reader, *_ = await hold(replicas, 3, "/v1/completions", COMPLETION)
            started = 1
        await close_sessions(replicas)
        if not moved:
            reader = Reader(gateway, "/v1/completions", COMPLETION)
            await eventually(lambda: gateway.context.pipeline.num_live)
        reader.task.cancel()
        await eventually(lambda: not gateway.context.pipeline.num_live, "not forgotten")
        for router in replicas.routers:
            router.state.closed = False
        await eventually(lambda: gateway.context.ready)
        await gateway.complete()
        assert sum(replicas.started) == started + 1


async def test_a_stream_does_not_move_for_ever(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        replicas.routers[0].state.drops = True
        response = await replicas.gateway.post("/v1/completions", COMPLETION)
        assert response.status_code == 503
        assert replicas.started == [4]


async def test_a_stream_does_not_move_beyond_its_deadline(
    start_replicas: StartReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.services.replica.LOST_SECONDS", 4.0)  # the deadline has passed by then
    async with start_replicas(request_timeout_seconds=3.0) as replicas:
        reader, owner, other = await hold(replicas, 3, "/v1/completions", COMPLETION)
        owner.state.frozen = True
        await asyncio.wait_for(reader.task, WAIT_SECONDS)
        assert reader.error is not None
        assert reader.error["code"] == 504
        assert not other.state.started


async def close_sessions(replicas: Replicas) -> None:
    """Closes all router sessions while the routers keep reporting a worker."""
    for router in replicas.routers:
        router.state.closed = True
    await eventually(
        lambda: not replicas.gateway.context.pipeline.router_streams.connected, "the gateway does not notice"
    )
