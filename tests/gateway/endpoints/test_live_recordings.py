"""`/v1/realtime` with models that write while they hear: one request, with which audio goes as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.models import byte_tokenizer
from gateway.endpoints import heard_recording
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.served_model import ServedModel
from gateway.services import router_streams
from gateway.services.routers import RouterSession
from quire.errors import Overloaded, Unavailable
from quire.v1 import common_pb2
from tests.gateway.endpoints.test_realtime import COMMIT, FINAL, UPDATE, append, connected, tell, told, transcript
from tests.support.fake_engine import FakeEngine, Request
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.renderer import Renderer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = byte_tokenizer(8192).encode("word " * 3000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayStack]:
    async with running_gateway(tmp_path_factory.mktemp("tokenizer"), api_key=("key",)) as running:
        served = running.context.fleet.model

        def hears(*arguments: Any) -> ServedModel:
            model, name = served(*arguments), "VoxtralRealtimeForConditionalGeneration"
            return replace(model, accepts_audio=True, architecture=name, max_model_len=10_000)

        running.context.fleet.model = hears  # type: ignore[method-assign]
        yield running
        await eventually(lambda: not running.context.realtime.num_live, "sessions go on")
        assert running.context.pipeline.num_live == running.context.statistics.num_live == 0
        assert not running.engine.live


@pytest.fixture(autouse=True)
def renderer(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renderer]:
    """A token is written for each that is heard: `word word ` and so on. Each sample is what a token hears."""
    monkeypatch.setattr(heard_recording, "_LEAST_BYTES", 2)

    def step(engine: FakeEngine, request: Request) -> None:
        (image,) = request.generation.images
        heard = len(image.inputs[0].data) // 2 + sum(each.audio.num_tokens for each in request.heard)
        is_over = not image.goes_on or any(each.is_last for each in request.heard)
        if heard == request.produced[0] and not is_over:
            return
        said = TEXT[request.produced[0] : heard]
        delta = request.outbox.post().deltas.add(stream_id=request.stream_id, token_ids=said)
        request.produced[0] = heard
        if is_over:
            delta.finish_reason, delta.ended_by_constraint = common_pb2.FINISH_REASON_STOP, True
            request.stopped[0] = heard
        engine._note_end(request, delta)

    monkeypatch.setattr(FakeEngine, "_step", step)
    found = Renderer()
    found.replace_in(monkeypatch)
    stack.engine.record.started.clear()
    stack.engine.record.aborted.clear()
    return found


async def test_text_comes_before_the_end(stack: GatewayStack, renderer: Renderer) -> None:
    async with connected(stack) as client:
        await told(client)
        for _ in range(2):
            await tell(client, UPDATE, COMMIT, append(3), append(2))
            text = ""
            while len(text) < 4:  # a space waits for what follows it
                text += (await told(client))["delta"]
            assert text == "word"
            await tell(client, COMMIT, append(4), FINAL)
            rest, done = await transcript(client)
            assert text + rest == done["text"] == "word word"
            assert (done["usage"]["prompt_tokens"], done["usage"]["completion_tokens"]) == (1, 9)
    first, second = stack.engine.record.started
    assert first.images[0].goes_on and first.images[0].inputs[0].data and not first.prompt_block_keys
    assert first.request_id.endswith("-1") and second.request_id.endswith("-2")
    assert [each.begins for each in renderer.live].count(True) == [each.ends for each in renderer.live].count(True) == 2
    assert sum(len(each.samples) for each in renderer.live) == 2 * 9 * 2


async def test_a_recording_that_is_over_at_once(stack: GatewayStack) -> None:
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, FINAL)
        assert (await told(client))["text"] == ""
        await tell(client, append(9), FINAL)
        assert (await transcript(client))[1]["text"] == "word word"


@pytest.mark.parametrize(("spare", "output"), [(9_990, 9_999), (0, 9)], ids=["the model's length", "max_tokens"])
async def test_a_full_sequence_is_followed_by_another(
    stack: GatewayStack, monkeypatch: pytest.MonkeyPatch, spare: int, output: int
) -> None:
    """The texts are joined, whatever size the audio comes in, and whatever limits a sequence."""
    monkeypatch.setattr(heard_recording, "_SPARE_TOKENS", spare)
    monkeypatch.setattr(GenerationRequest, "output_tokens", output)
    monkeypatch.setattr("gateway.endpoints.realtime_session.MOST_BYTES", 8)
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, append(28), append(5), FINAL)
        _, done = await transcript(client)
    assert done["text"] == "word word wo word word wo word word"
    assert done["usage"]["prompt_tokens"] == len(stack.engine.record.started) == 3


@pytest.mark.parametrize("error", [Unavailable("The worker is gone."), Overloaded("It is full.")], ids=str)
async def test_what_is_lost_is_told_and_the_next_audio_begins_anew(stack: GatewayStack, error: Any) -> None:
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, append(6))
        text = (await told(client))["delta"]
        while len(text) < 6:
            text += (await told(client))["delta"]
        stack.engine.fail_all(error)
        event = await told(client)
        assert (event["type"], error.message in event["error"]) == ("error", True)
        await tell(client, append(9), FINAL)
        rest, done = await transcript(client)
        assert done["text"] == text + rest == "word w word word"
    assert len(stack.engine.record.started) == 2


async def test_a_request_that_cannot_start(stack: GatewayStack, renderer: Renderer) -> None:
    async with connected(stack) as client:
        await told(client)
        renderer.error = Overloaded("Too much.")
        await tell(client, UPDATE, append(5))
        assert (await told(client))["error"] == "Too much."
        renderer.error = None
        await tell(client, append(4), FINAL)
        assert (await transcript(client))[1]["text"] == "word"


async def test_who_is_far_ahead_waits(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    """No more is sent to an engine that does not keep up; and who leaves ends the work."""
    monkeypatch.setattr(heard_recording, "_MOST_AHEAD", 20)
    monkeypatch.setattr(FakeEngine, "_step", lambda *_: None)
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, *[append(10)] * 8)
        await eventually(lambda: bool(stack.engine.live) and len(next(iter(stack.engine.live)).heard) == 2)
        assert len(renderer.live) == 3
    await eventually(lambda: len(stack.engine.record.aborted) == 1, "the engine goes on")
    await eventually(lambda: not stack.context.pipeline.num_live, "the gateway goes on")


@pytest.mark.parametrize("reason", [common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH])
async def test_a_sequence_that_ends_by_itself_is_followed_by_another(
    stack: GatewayStack, reason: common_pb2.FinishReason
) -> None:
    """Models may end before the recording does, and servers may limit outputs: what comes later is written too."""
    async with connected(stack) as client:
        await told(client)
        await tell(client, UPDATE, append(4))
        await eventually(lambda: any(request.produced[0] == 4 for request in stack.engine.live))
        (request,) = stack.engine.live
        delta = request.outbox.post().deltas.add(stream_id=request.stream_id, finish_reason=reason)
        request.stopped[0] = 4
        stack.engine._note_end(request, delta)
        await eventually(lambda: not stack.context.pipeline.num_live, "it has not ended")
        await tell(client, append(9), FINAL)
        assert (await transcript(client))[1]["text"] == "word word word"


async def test_audio_that_a_router_does_not_take_ends_the_request_there_too(
    stack: GatewayStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the audio has been waiting for the router."""

    def full(*_: Any) -> None:
        raise Overloaded("It does not read.")

    async with connected(stack) as client:
        await told(client)
        with monkeypatch.context() as away:
            away.setattr(router_streams, "pick", lambda *_: None)
            await tell(client, UPDATE, append(4), append(5))
            live = stack.context.pipeline._live
            await eventually(lambda: any(state.streams and state.streams[0].coming for state in live))
        monkeypatch.setattr(RouterSession, "hear", full)
        event = await told(client)
        assert (event["type"], event["error"]) == ("error", "It does not read.")
        await eventually(lambda: stack.engine.record.started and not stack.engine.live, "the engine goes on")
