"""`/v1/realtime` over real WebSockets: events, segments, limits, and how sessions end."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.models import byte_tokenizer
from gateway.endpoints.realtime_session import RealtimeSession
from gateway.http_protocol import LimitedProtocol
from gateway.requests.served_model import ServedModel
from quire.errors import InvalidRequest
from tests.support.fake_engine import Request
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.renderer import Renderer, says
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = {"authorization": "Bearer key"}
FEW = {"name": "few", "key": "few", "requests_per_minute": 1}
UPDATE = {"type": "session.update", "model": "fake"}
COMMIT = {"type": "input_audio_buffer.commit"}
FINAL = COMMIT | {"final": True}
TOKENIZER = byte_tokenizer(8192)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayStack]:
    folder = tmp_path_factory.mktemp("tokenizer")
    file = folder / "keys"
    file.write_text(json.dumps({"keys": [FEW]}))
    async with running_gateway(
        folder, api_key=("key",), api_key_file=str(file), realtime_segment_seconds=1.0, root_path="/llm"
    ) as running:
        served = running.context.fleet.model

        def hears(*arguments: Any) -> ServedModel:
            return replace(served(*arguments), accepts_audio=True, architecture="Qwen2AudioForConditionalGeneration")

        running.context.fleet.model = hears  # type: ignore[method-assign]
        yield running
        await eventually(lambda: not running.context.realtime.num_live, "sessions go on")
        assert running.context.pipeline.num_live == running.context.statistics.num_live == 0


@pytest.fixture(autouse=True)
def renderer(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renderer]:
    """What segments say: word 0, word 1 and so on."""
    found = Renderer()
    found.replace_in(monkeypatch)
    said = iter(f" word {number}" for number in range(100))
    texts: dict[int, list[int]] = {}

    def say(request: Request) -> list[int]:
        own = texts.setdefault(request.stream_id, [])
        if not own:
            own += TOKENIZER.encode(f"{next(said)}<|im_end|>")
        return own

    says(monkeypatch, say)
    stack.engine.record.started.clear()
    stack.engine.record.aborted.clear()
    return found


def connected(stack: GatewayStack, path: str = "/v1/realtime", **headers: str) -> connect:
    return connect(f"ws://127.0.0.1:{stack.port}{path}", additional_headers={**KEY, **headers}, proxy=None)


async def tell(client: ClientConnection, *events: dict[str, Any]) -> None:
    for event in events:
        await client.send(json.dumps(event))


async def told(client: ClientConnection) -> dict[str, Any]:
    return dict(json.loads(await asyncio.wait_for(client.recv(), 30)))


async def refused(client: ClientConnection, event: dict[str, Any] | str | bytes) -> tuple[str, str, str | None]:
    await client.send(json.dumps(event) if isinstance(event, dict) else event)
    found = await told(client)
    assert found["type"] == "error"
    return found["error"], found["code"], found["param"]


def append(samples: int | bytes) -> dict[str, Any]:
    content = samples if isinstance(samples, bytes) else np.full(samples, 1000, "<i2").tobytes()
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(content).decode()}


async def transcript(client: ClientConnection) -> tuple[str, dict[str, Any]]:
    """The deltas together, and the last event."""
    text = ""
    while (event := await told(client))["type"] == "transcription.delta":
        text += event["delta"]
    return text, event


def num_samples(file: bytes) -> int:
    with wave.open(io.BytesIO(file)) as found:
        assert (found.getnchannels(), found.getsampwidth(), found.getframerate()) == (1, 2, 16_000)
        return found.getnframes()


async def test_vllms_clients(stack: GatewayStack, renderer: Renderer) -> None:
    """They commit before there is audio, and say at the end that it was all."""
    async with connected(stack) as client:
        created = await told(client)
        assert created["type"] == "session.created" and created["id"].startswith("sess-") and created["created"]
        await tell(client, UPDATE, COMMIT, append(1600), append(1600), FINAL)
        text, done = await transcript(client)
        assert text == "word 0"
        usage = {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9}
        assert done == {"type": "transcription.done", "text": text, "usage": done["usage"]}
        assert {name: done["usage"][name] for name in usage} == usage
        await tell(client, append(800), FINAL)
        assert await transcript(client) == ("word 1", done | {"text": "word 1"})
    assert [num_samples(file) for file in renderer.files] == [3200, 800]


async def test_openais_clients(stack: GatewayStack, renderer: Renderer) -> None:
    """Their audio has 24,000 samples a second, and each commit ends a transcript."""
    own = AsyncOpenAI(api_key="key", base_url=f"http://127.0.0.1:{stack.port}/v1", max_retries=0)
    async with own, own.realtime.connect(model="fake", extra_query={"intent": "transcription"}) as client:

        async def event(kind: str) -> Any:
            found = await asyncio.wait_for(client.recv(), 30)
            assert found.type == kind, found
            return found

        transcript = "conversation.item.input_audio_transcription"
        created = (await event("session.created")).session
        assert (created.type, created.audio.input.format.rate) == ("transcription", 24_000)
        assert (await event("session.updated")).session.audio.input.transcription.model == "fake"
        asked: Any = {"model": "fake", "language": "de", "prompt": "Names: Ann."}
        await client.session.update(
            session={"type": "transcription", "audio": {"input": {"transcription": asked, "turn_detection": None}}}
        )
        assert (await event("session.updated")).session.id == created.id
        items = []
        for said in ("word 0", "word 1"):
            await client.input_audio_buffer.append(audio=append(4800)["audio"])
            await client.input_audio_buffer.commit()
            items.append((await event("input_audio_buffer.committed")).item_id)
            text = ""
            while (found := await client.recv()).type == f"{transcript}.delta":
                text += found.delta or ""
            assert found.type == f"{transcript}.completed"
            assert (found.transcript, found.item_id, found.usage.output_tokens) == (text, items[-1], 8)
            assert text == said
        assert items[0] != items[1]
        realtime: Any = {"type": "realtime", "instructions": "Sing."}
        await client.session.update(session=realtime, event_id="mine")
        error = (await event("error")).error
        assert (error.param, "'realtime'" in error.message) == ("session.type", True)
        await client.send({"type": "session.update", "event_id": "mine", "model": "other"})  # type: ignore[typeddict-item]
        error = (await event("error")).error
        assert (error.type, error.param, error.event_id) == ("NotFoundError", "model", "mine")
    assert renderer.texts == ["Names: Ann. The language is German."] * 2
    assert [num_samples(file) for file in renderer.files] == [3202, 3202]


async def test_what_openais_sessions_may_ask_for(stack: GatewayStack, renderer: Renderer) -> None:
    """The form is theirs from the first session on, even if that is refused; what they do not name stays."""

    async def update(**given: Any) -> dict[str, Any]:
        session = {"type": "transcription", "audio": {"input": given}}
        await tell(client, {"type": "session.update", "session": session})
        return await told(client)

    async with connected(stack) as client:
        created = await told(client)
        assert created["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 16_000}
        for refused_settings, words in (
            ({"turn_detection": {"type": "server_vad"}}, "turn_detection: Expected `null`"),
            ({"noise_reduction": {"type": "near_field"}}, "noise_reduction: Expected `null`"),
            ({"format": {"type": "audio/pcmu"}}, "'audio/pcmu'"),
            ({"format": {"rate": 8000}}, "Invalid enum value 8000"),
            ({"transcription": {"delay": "low"}}, "unknown field `delay`"),
        ):
            error = await update(**refused_settings)
            assert words in str(error["error"])
        error = await update(transcription={"model": "other"})
        assert (error["error"]["param"], error["error"]["type"]) == ("model", "NotFoundError")
        named = {"model": "fake", "language": "de", "prompt": None}
        assert (await update(transcription=named))["type"] == "session.updated"
        updated = await update(format={"type": "audio/pcm", "rate": 16_000})
        heard = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": named}
        assert updated["session"]["audio"]["input"] == heard | {"turn_detection": None, "noise_reduction": None}
        both = {"type": "session.update", "model": "fake", "session": {"type": "transcription"}}
        await tell(client, both, append(800), COMMIT)
        assert "either a session" in (await told(client))["error"]["message"]
        assert (await told(client))["previous_item_id"] is None
        while not (event := await told(client))["type"].endswith("completed"):
            assert event["delta"]
    assert [num_samples(file) for file in renderer.files] == [800]


async def test_segments(stack: GatewayStack, renderer: Renderer) -> None:
    """Each is transcribed when it is long enough, or committed; their texts become one."""
    quiet = np.full(32_000, 1000, "<i2")
    quiet[14_000:15_600] = 0
    async with connected(stack, "/llm/v1/realtime?model=fake") as client:
        await told(client)
        await tell(client, append(quiet.tobytes()))
        assert (await told(client))["delta"]
        await tell(client, COMMIT, append(320), FINAL)
        _, done = await transcript(client)
    assert done["text"] == "word 0 word 1 word 2 word 3"
    sizes = [num_samples(file) for file in renderer.files]
    assert sizes[0] == 14_800 and sum(sizes) == 32_320
    assert done["usage"]["prompt_tokens"] == 4
    metrics = (await stack.client.get("/metrics", headers=KEY)).text
    assert "quire_gateway_realtime_sessions_started_total" in metrics
    assert "quire_gateway_realtime_audio_seconds_total" in metrics


async def test_wrong_events(stack: GatewayStack) -> None:
    async with connected(stack, "/v1/realtime?model=other") as client:
        await told(client)
        error = await told(client)
        assert (error["code"], error["param"]) == ("NotFoundError", "model")
        for event, words, param in (
            (append(16), "No model has been named", "model"),
            (COMMIT, "No model has been named", "model"),
            ("{", "is no JSON", None),
            (b"\0\0", "is binary", None),
            ("[]", "Expected `object`", None),
            ('{"a":' * 10_000, "nested too deeply", None),
            ({"type": "response.create"}, "Invalid value 'response.create'", "type"),
            ({"audio": "AAA="}, "missing required field `type`", "type"),
            (UPDATE | {"temperature": 1}, "unknown field `temperature`", None),
            (UPDATE | {"session": {}}, "missing required field `type`", "session.type"),
            (UPDATE | {"model": "other"}, "'other'", "model"),
            (UPDATE | {"language": "xx"}, "language is 'xx'", "language"),
        ):
            message, code, found = await refused(client, event)
            assert words in message and code
            assert (found or None) == param, message
        await tell(client, UPDATE)
        for audio, words in (("?", "no base64"), ("", "has 0 bytes"), ("AAAA", "has 3 bytes")):
            message, _, found = await refused(client, {"type": "input_audio_buffer.append", "audio": audio})
            assert words in message and found == "audio"
        await tell(client, append(800), FINAL)  # the session goes on
        assert (await transcript(client))[1]["text"] == "word 0"


async def test_what_models_are_told(stack: GatewayStack, renderer: Renderer) -> None:
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE | {"language": "de", "prompt": "Names: Ann."}, append(800), FINAL)
        await transcript(client)
    assert renderer.texts == ["Names: Ann. The language is German."]


async def test_a_segment_that_fails(stack: GatewayStack, renderer: Renderer) -> None:
    async with connected(stack) as client:
        await told(client)
        renderer.error = InvalidRequest("It hums.", parameter="messages")
        await tell(client, UPDATE, append(800), COMMIT)
        error = await told(client)
        assert (error["type"], error["error"], error["code"]) == ("error", "It hums.", "BadRequestError")
        renderer.error = None
        await tell(client, append(800), FINAL)
        assert (await transcript(client))[1]["text"] == "word 0"


async def test_who_leaves_ends_the_work(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, lambda request: [65] * 1000)
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, append(800), FINAL)
        assert (await told(client))["type"] == "transcription.delta"
    await eventually(lambda: len(stack.engine.record.aborted) == 1, "the engine goes on")
    await eventually(lambda: not stack.context.pipeline.num_live, "the gateway goes on")


@pytest.mark.parametrize("headers", [{"authorization": "Bearer other"}, {"authorization": "key"}])
async def test_without_the_key(stack: GatewayStack, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connected(stack, **headers)
    response = caught.value.response
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(response.body or b"")["error"]["code"] == 401


async def test_each_segment_counts_for_a_keys_limits(stack: GatewayStack) -> None:
    async with connected(stack, authorization="Bearer few") as client:
        await told(client)
        await tell(client, UPDATE, append(800), COMMIT, append(800), FINAL)
        assert (await told(client))["type"] == "transcription.delta"
        error = await told(client)
        while error["type"] != "error":
            error = await told(client)
        assert (error["code"], "requests_per_minute is 1" in error["error"]) == ("RateLimitError", True)
        assert (await told(client))["text"] == "word 0"


@pytest.mark.parametrize("left", [[], [{"name": "gone", "key": "other"}]], ids=["removed", "replaced"])
async def test_a_key_that_is_removed_ends_its_sessions(stack: GatewayStack, left: list[dict[str, str]]) -> None:
    """They write what they have heard. Those of other keys go on."""

    def save(*keys: dict[str, str]) -> None:
        Path(stack.context.options.api_key_file or "").write_text(json.dumps({"keys": [FEW, *keys]}))
        stack.context.api_keys.files.refresh()

    save({"name": "gone", "key": "gone"})
    async with connected(stack, authorization="Bearer few") as other, connected(stack) as plain:
        async with connected(stack, authorization="Bearer gone") as client:
            await told(client)
            await tell(client, UPDATE, append(800), {"type": "?"})
            assert (await told(client))["type"] == "error"  # so the audio has arrived
            save(*left)
            assert (await transcript(client))[1]["text"] == "word 0"
            error = await told(client)
            assert (error["code"], "has been removed" in error["error"]) == ("AuthenticationError", True)
            with pytest.raises(ConnectionClosed) as caught:
                await told(client)
        assert caught.value.rcvd and caught.value.rcvd.code == 1008
        for each in (other, plain):
            assert (await told(each))["type"] == "session.created"
            assert (await refused(each, "{"))[0].startswith("A message is no JSON")
    save()


async def test_pages_of_other_origins(stack: GatewayStack) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connected(stack, origin="https://example.org")
    assert caught.value.response.status_code == 403
    assert b"--allowed-origins" in (caught.value.response.body or b"")
    async with connected(stack, origin=f"http://127.0.0.1:{stack.port}") as client:
        assert (await told(client))["type"] == "session.created"


async def test_what_is_no_websocket(stack: GatewayStack) -> None:
    response = await stack.client.get("/v1/realtime", headers=KEY)
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")
    assert "connect to it with a WebSocket client" in response.json()["error"]["message"]
    with pytest.raises(InvalidStatus) as caught:
        await connected(stack, "/v1/models")
    assert caught.value.response.status_code == 200


async def test_browsers_clients_offer_a_subprotocol(stack: GatewayStack) -> None:
    url = f"ws://127.0.0.1:{stack.port}/v1/realtime"
    async with connect(url, additional_headers=KEY, subprotocols=["realtime"], proxy=None) as client:  # type: ignore[list-item]
        assert client.subprotocol == "realtime"


async def test_messages_have_a_limit(stack: GatewayStack) -> None:
    async with connected(stack) as client:
        await told(client)
        await client.send("x" * (2**20 + 1))
        with pytest.raises(ConnectionClosed) as caught:
            await told(client)
    assert caught.value.rcvd and caught.value.rcvd.code == 1009


async def test_connections_have_a_limit(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = property(lambda protocol: 1, lambda protocol, value: None)
    monkeypatch.setattr(LimitedProtocol, "limit_concurrency", limit, raising=False)
    with pytest.raises(InvalidStatus) as caught:
        await connected(stack)
    assert caught.value.response.status_code == 503


async def test_silence_ends_a_session(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.context, "options", replace(stack.context.options, realtime_idle_seconds=0.05))
    async with connected(stack) as client:
        await told(client)
        error = await told(client)
        assert error["code"] == "idle_timeout" and "--realtime-idle-seconds" in error["error"]
        with pytest.raises(ConnectionClosed) as caught:
            await told(client)
    assert caught.value.rcvd and caught.value.rcvd.code == 1001


async def test_bugs_are_logged(
    stack: GatewayStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RealtimeSession, "_handle", None)
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE)
        error = await told(client)
        assert (error["code"], "the gateway's log" in error["error"]) == ("InternalServerError", True)
        with pytest.raises(ConnectionClosed) as caught:
            await told(client)
    assert caught.value.rcvd and caught.value.rcvd.code == 1011
    assert "a realtime session failed" in caplog.text


async def test_a_server_that_stops(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes what it has heard, and takes no new sessions."""
    sessions = stack.context.realtime
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, append(800), {"type": "?"})
        assert (await told(client))["type"] == "error"  # so the audio has arrived
        await asyncio.wait_for(sessions.end(), 30)
        text, done = await transcript(client)
        assert (text, done["text"]) == ("word 0", "word 0")
        error = await told(client)
        assert (error["code"], "stopping" in error["error"]) == ("ServiceUnavailableError", True)
        with pytest.raises(ConnectionClosed) as caught:
            await told(client)
    assert caught.value.rcvd and caught.value.rcvd.code == 1012
    with pytest.raises(InvalidStatus) as refusal:
        await connected(stack)
    assert refusal.value.response.status_code == 503
    sessions.is_ending = False
