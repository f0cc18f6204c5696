"""Stored responses: retrieved, continued, followed and cancelled, by the same gateway and by another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from openai.types.responses import ResponseItemList

from gateway.errors import stopping
from gateway.response_store.base import EventChunk, NewResponse
from gateway.response_store.sqlite import SqliteStore
from quire.errors import Internal
from quire.options.responses import ResponsesOptions
from quire.rpc.server import GrpcServer
from tests.gateway.conftest import StartReplicas
from tests.gateway.endpoints.test_responses import ASKED, answer, events_of, read, stream
from tests.support.fake_router import FakeRouter, FakeRouterState
from tests.support.gateway_stack import Gateway, gateway_before
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELD = 3  # tokens sent before a generation is held
ENDED = "incomplete"  # how the fake router ends a generation: by its length


@dataclass
class Shared:
    """Two gateways that share a store and a router."""

    one: Gateway
    other: Gateway
    router: FakeRouter
    path: Path


@contextlib.asynccontextmanager
async def running(tokenizer: GrpcServer, path: Path, **options: Any) -> AsyncIterator[Shared]:
    options["responses"] = ResponsesOptions(f"sqlite:///{path}")
    router = await FakeRouter().start()
    places = ([router.address], [f"127.0.0.1:{tokenizer.port}"])
    try:
        async with gateway_before(*places, **options) as one, gateway_before(*places, **options) as other:
            yield Shared(one, other, router, path)
    finally:
        await router.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer: GrpcServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    async with running(tokenizer, tmp_path_factory.mktemp("responses") / "responses.db") as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def shared(stack: Shared) -> AsyncIterator[Shared]:
    """The shared gateways with a fresh router state; afterwards nothing may be left running."""
    stack.router.state = FakeRouterState()
    yield stack
    stack.one.context.responses.cut(stopping())
    for gateway in (stack.one, stack.other):
        await eventually(lambda context=gateway.context: not context.statistics.num_live, "something is left")


async def retrieve(gateway: Gateway, identity: str, **headers: str) -> httpx.Response:
    return await gateway.client.get(f"/v1/responses/{identity}", headers=headers)


async def follow(gateway: Gateway, identity: str, after: int | None = None) -> list[dict[str, Any]]:
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    response = await gateway.client.get(f"/v1/responses/{identity}", params=query)
    return events_of(response, 0 if after is None else after + 1)


async def ended(gateway: Gateway, identity: str) -> dict[str, Any]:
    found = read(await retrieve(gateway, identity))
    while found["status"] == "in_progress":
        await asyncio.sleep(0.02)
        found = read(await retrieve(gateway, identity))
    return found


async def begun(shared: Shared, **fields: Any) -> dict[str, Any]:
    """A background response that has sent some tokens and is then held."""
    shared.router.state.hold = HELD
    found = await answer(shared.one, background=True, **fields)
    await eventually(lambda: shared.router.holding, "nothing comes")
    path = f"/v1/responses/{found['id']}?stream=true"
    async with shared.one.client.stream("GET", path) as events:
        lines, text = events.aiter_lines(), ""
        while len(text) < HELD:  # sent does not mean received yet
            line = await anext(lines)
            if line.startswith("data: ") and '"response.output_text.delta"' in line:
                text += msgspec.json.decode(line.removeprefix("data: "))["delta"]
    return found


async def test_what_is_kept_can_be_gone_on_with(shared: Shared) -> None:
    whole = await answer(shared.one, instructions="S")
    assert (whole["store"], whole["status"]) == (True, ENDED)
    for gateway in (shared.one, shared.other):
        assert read(await retrieve(gateway, whole["id"])) == whole
    told = await stream(shared.other, input="B", previous_response_id=whole["id"])
    following = told[-1]["response"]
    assert following["previous_response_id"] == whole["id"]
    third = await answer(shared.one, input="C", previous_response_id=following["id"])
    texts = [each["output"][0]["content"][0]["text"] for each in (whole, following)]
    said = [item for text, reply in zip("AB", texts, strict=True) for item in (
        {"role": "user", "content": text}, {"role": "assistant", "content": reply})]  # fmt: skip
    conversation = {"messages": [*said, {"role": "user", "content": "C"}]}
    expected = (await shared.one.post("/tokenize", conversation)).json()["count"]
    assert third["usage"]["input_tokens"] == expected


async def test_what_is_not_kept_is_not_found(shared: Shared, start_replicas: StartReplicas) -> None:
    unkept = await answer(shared.one, store=False)
    assert unkept["store"] is False
    gone = await answer(shared.one)
    deleted = await shared.other.client.delete(f"/v1/responses/{gone['id']}")
    assert deleted.json() == {"id": gone["id"], "object": "response", "deleted": True}
    for identity in (unkept["id"], gone["id"], "resp_x", "x" * 500):
        await not_found(shared.one, identity, "--responses-store-max-age-seconds")
    async with start_replicas(1) as replicas:
        none = await answer(replicas.gateway, store=True)
        assert none["store"] is False
        await not_found(replicas.gateway, none["id"], "does not store responses")


async def not_found(gateway: Gateway, identity: str, named: str) -> None:
    path = f"/v1/responses/{identity}"
    for response in (
        await retrieve(gateway, identity),
        await gateway.client.get(f"{path}?stream=true"),
        await gateway.client.delete(path),
        await gateway.client.post(f"{path}/cancel"),
        await gateway.post("/v1/responses", ASKED | {"previous_response_id": identity}),
    ):
        assert response.status_code == 404, response.text
        assert response.json()["error"]["type"] == "NotFoundError"
        assert named in response.json()["error"]["message"]


async def test_another_keys_responses_are_not_found(tokenizer: GrpcServer, tmp_path: Path) -> None:
    async with running(tokenizer, tmp_path / "r.db", api_key=("one", "two")) as shared:
        mine, yours = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
        kept = read(await shared.one.post("/v1/responses", ASKED, **mine))
        assert (await retrieve(shared.one, kept["id"], **mine)).status_code == 200
        assert (await retrieve(shared.one, kept["id"], **yours)).status_code == 404
        path = f"/v1/responses/{kept['id']}"
        assert (await shared.one.client.delete(path, headers=yours)).status_code == 404
        assert (await shared.one.client.post(f"{path}/cancel", headers=yours)).status_code == 404
        asked = ASKED | {"previous_response_id": kept["id"]}
        assert (await shared.one.post("/v1/responses", asked, **yours)).status_code == 404
        assert (await shared.one.client.get(path)).status_code == 401


async def test_in_the_background(shared: Shared) -> None:
    started = await answer(shared.one, background=True)
    assert (started["status"], started["background"], started["output"]) == ("in_progress", True, [])
    found = await ended(shared.other, started["id"])
    assert (found["status"], found["id"]) == (ENDED, started["id"])
    assert found["output"][0]["content"][0]["text"]
    for gateway in (shared.one, shared.other):
        events = await follow(gateway, started["id"])
        assert events[-1]["response"] == found
        for after in (0, 3, len(events) - 2):
            assert await follow(gateway, started["id"], after) == events[after + 1 :]
        assert await follow(gateway, started["id"], len(events) + 5) == []


async def test_followers_get_the_rest_as_it_comes(shared: Shared) -> None:
    started = await begun(shared)
    waiting = await shared.one.post("/v1/responses", ASKED | {"previous_response_id": started["id"]})
    assert (waiting.status_code, "not finished" in waiting.text) == (400, True)
    following = [asyncio.create_task(follow(gateway, started["id"], 2)) for gateway in (shared.one, shared.other)]
    for stream_of_it in shared.router.live:
        stream_of_it.hold = None
    here, there = await asyncio.gather(*following)
    assert here == there
    assert here[-1]["type"] == f"response.{ENDED}"


async def test_a_stream_in_the_background_outlives_its_client(shared: Shared) -> None:
    shared.router.state.hold = HELD
    for fields, status in (({"background": True}, ENDED), ({}, "cancelled")):
        asked = ASKED | {"stream": True} | fields
        async with shared.one.client.stream("POST", "/v1/responses", json=asked) as response:
            lines = response.aiter_lines()
            await anext(lines)
            created = msgspec.json.decode((await anext(lines)).removeprefix("data: "))
            await eventually(lambda: shared.router.holding, "nothing comes")
        if fields:
            shared.router.live[0].hold = None
        assert (await ended(shared.one, created["response"]["id"]))["status"] == status
        assert (await follow(shared.one, created["response"]["id"]))[-1]["response"]["status"] == status


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_cancelling(shared: Shared, elsewhere: bool) -> None:
    started = await begun(shared)
    gateway = shared.other if elsewhere else shared.one
    cancelled = read(await gateway.client.post(f"/v1/responses/{started['id']}/cancel"))
    assert (cancelled["status"], cancelled["usage"]["output_tokens"]) == ("cancelled", HELD)
    await eventually(lambda: not shared.router.live, "the generation goes on")
    again = await shared.one.client.post(f"/v1/responses/{started['id']}/cancel")
    assert again.json() == cancelled


async def test_deleting_ends_it_too(shared: Shared) -> None:
    started = await begun(shared)
    assert (await shared.other.client.delete(f"/v1/responses/{started['id']}")).status_code == 200
    await eventually(lambda: not shared.router.live, "the generation goes on")
    assert (await retrieve(shared.one, started["id"])).status_code == 404


async def test_what_fails(shared: Shared) -> None:
    shared.router.state.refusal = Internal("broken", reason="REQUEST_FAULT")
    found = await ended(shared.one, (await answer(shared.one, background=True))["id"])
    assert (found["status"], found["error"]) == ("failed", {"code": "server_error", "message": "broken"})
    assert (await follow(shared.other, found["id"]))[-1]["type"] == "response.failed"
    refused = await shared.one.post("/v1/responses", ASKED | {"stream": True})
    assert refused.status_code == 500


async def test_deep_nesting_is_harmless(shared: Shared) -> None:
    for depth in range(100, 2000, 100):
        nested = "[" * depth + "]" * depth
        text = (
            f'{{"model": "fake", "max_output_tokens": 1, "input": [{{"role": "user", "content": "A", "x": {nested}}}]}}'
        )
        found = await shared.one.client.post(
            "/v1/responses", content=text, headers={"content-type": "application/json"}
        )
        assert found.status_code == 200 or "nested too deeply" in found.text
        if found.status_code == 200:
            asked = ASKED | {"previous_response_id": found.json()["id"]}
            assert (await shared.other.post("/v1/responses", asked)).status_code == 200


async def test_a_server_that_stops_says_so(shared: Shared) -> None:
    started = await begun(shared)
    shared.one.context.responses.cut(stopping())
    found = await ended(shared.other, started["id"])
    assert (found["status"], "stopping" in found["error"]["message"]) == ("failed", True)


async def test_what_a_lost_gateway_worked_on_has_failed(shared: Shared) -> None:
    kept = await answer(shared.one, input="B")
    store = SqliteStore(shared.path, 10, 60.0)
    body = msgspec.json.encode(kept | {"id": "resp_lost", "status": "in_progress", "background": True})
    chunk = EventChunk(0, (b'event: response.created\ndata: {"sequence_number": 0}\n\n',))
    await store.add(NewResponse("resp_lost", "", body, b"[]", is_live=True, has_events=True))
    await store.beat("resp_lost", chunk)
    store._database.execute("UPDATE responses SET heartbeat = 0 WHERE id = 'resp_lost'")
    store._database.commit()
    found = read(await retrieve(shared.other, "resp_lost"))
    assert (found["status"], "lost" in found["error"]["message"]) == ("failed", True)
    (last,) = await follow(shared.one, "resp_lost", 0)
    assert last["response"] == found
    await store.close()


async def test_what_is_wrong_is_named(shared: Shared) -> None:
    whole = await answer(shared.one)
    for query, named in (
        ("stream=maybe", "stream"), ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=1", "stream=true"), ("stream=true", "not stored"),
    ):  # fmt: skip
        wrong = await shared.one.client.get(f"/v1/responses/{whole['id']}?{query}")
        assert wrong.status_code == 400
        assert named in wrong.json()["error"]["message"]
    unkept = await shared.one.post("/v1/responses", ASKED | {"background": True, "store": False})
    assert (unkept.status_code, "store is false" in unkept.text) == (400, True)


async def test_what_a_response_was_asked_with(shared: Shared) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_own"}
    result = {"type": "function_call_output", "call_id": "c", "output": "4"}
    first = await answer(shared.one, input=[{"role": "user", "content": "A"}, call, result])
    second = await answer(shared.one, input="B", previous_response_id=first["id"])
    path = f"/v1/responses/{second['id']}/input_items"
    whole = (await shared.other.client.get(path, params={"order": "asc"})).json()
    ResponseItemList.model_validate(whole)
    kinds = ["message", "function_call", "function_call_output", "message", "message"]
    assert [item["type"] for item in whole["data"]] == kinds
    assert whole["data"][0]["content"] == [{"type": "input_text", "text": "A"}]
    assert whole["data"][1]["id"] == "fc_own" and whole["data"][3]["role"] == "assistant"
    ids = [item["id"] for item in whole["data"]]
    assert len(set(ids)) == 5 and (whole["first_id"], whole["last_id"], whole["has_more"]) == (ids[0], ids[-1], False)
    page = (await shared.one.client.get(path, params={"limit": "2", "after": ids[4]})).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([ids[3], ids[2]], True)
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}):
        refused = await shared.one.client.get(path, params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, *query)
    assert (await shared.one.client.get("/v1/responses/resp_x/input_items")).status_code == 404
