"""Recordings longer than the model takes: cut into pieces, whose texts become one."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from benchmarks.models import byte_tokenizer
from gateway.pipeline import Pipeline
from gateway.requests.chain import MOST_LIVE
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.served_model import ServedModel
from gateway.requests.state import RequestState
from quire.errors import InvalidRequest, Unavailable
from tests.support.fake_engine import Request
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.renderer import FIRST_TOKEN, Renderer, says
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/audio/transcriptions"
SPEECH = {"file": ("a.wav", b"long", "audio/wav")}
FEW = {"max_completion_tokens": "3"}
ENDLESS = {"max_completion_tokens": "3000"}
SAID = ["AHO", "BIP", "CJQ", "DKR", "ELS", "FMT", "GNU", "HOV", "IPW"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayStack]:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer(8192).save_pretrained(folder)
    async with running_gateway(folder, enable_prompt_tokens_details=True) as running:
        served = running.context.fleet.model

        def hears(*arguments: Any) -> ServedModel:
            return replace(served(*arguments), accepts_audio=True, architecture="Qwen2AudioForConditionalGeneration")

        running.context.fleet.model = hears  # type: ignore[method-assign]
        yield running
        assert running.context.pipeline.num_live == running.context.statistics.num_live == 0


@pytest.fixture
def renderer(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> Renderer:
    found = Renderer()
    found.replace_in(monkeypatch)
    stack.engine.record.started.clear()
    stack.engine.record.aborted.clear()
    return found


@pytest.fixture
def most_live(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The highest number of requests that were live at a time."""
    start, live, found = Pipeline.start, [0], [0]

    async def counted(self: Pipeline, request: GenerationRequest) -> RequestState:
        state = await start(self, request)
        live[0] += 1
        found[0] = max(*found, *live)
        release = state._release

        def ended(ending: RequestState) -> None:
            live[0] -= 1
            release(ending)

        state._release = ended
        return state

    monkeypatch.setattr(Pipeline, "start", counted)
    return found


def speaks(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    """Makes the engine say a text for each piece."""
    tokenizer = byte_tokenizer(8192)

    def said(request: Request) -> list[int]:
        return list(tokenizer.encode(f"{texts[request.generation.prompt_token_ids[0] - FIRST_TOKEN]}<|im_end|>"))

    says(monkeypatch, said)


async def spoken(stack: GatewayStack, files: Any = SPEECH, **fields: Any) -> httpx.Response:
    return await stack.client.post(PATH, data=FEW | fields, files=files)


async def streamed(stack: GatewayStack, **fields: Any) -> list[Any]:
    response = await spoken(stack, stream="true", **fields)
    contents = [line.removeprefix("data: ") for line in response.text.strip().split("\n\n")]
    assert contents.pop() == "[DONE]"
    return [json.loads(content) for content in contents]


def content(chunks: list[Any]) -> str:
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk.get("choices"))


async def test_pieces_become_one_text(stack: GatewayStack, renderer: Renderer, most_live: list[int]) -> None:
    renderer.cut_into(9, 10.25)
    response = await spoken(stack)
    assert response.json() == {"text": " ".join(SAID), "usage": {"type": "duration", "seconds": 93}}
    assert renderer.files == [b"long"]
    assert [list(request.audios) for request, _ in renderer.asked] == [[b"%d" % number] for number in range(9)]
    ids = [generation.request_id for generation in stack.engine.record.started]
    assert ids == [ids[0], *(f"{ids[0]}-{number}" for number in range(1, 9))]
    assert most_live[0] <= MOST_LIVE
    assert renderer.num_cutting == 0
    text = await spoken(stack, response_format="text")
    assert text.text == " ".join(SAID) + "\n"


async def test_a_recording_that_fits_is_one_request(stack: GatewayStack, renderer: Renderer) -> None:
    assert (await spoken(stack)).json()["text"] == "AHO"
    assert list(renderer.last.audios) == [b"long"]
    assert (len(renderer.asked), renderer.num_cut, renderer.num_cutting) == (1, 1, 0)


async def test_recordings_by_url_are_cut(stack: GatewayStack, renderer: Renderer) -> None:
    renderer.cut_into(2)
    url = f"data:audio/wav;base64,{base64.b64encode(b'far').decode()}"
    response = await spoken(stack, files={"file_url": (None, url)})
    assert response.json()["text"] == "AHO BIP"
    assert renderer.files == [b"far"]
    renderer.cut_error = InvalidRequest("file is no recording.", parameter="file")
    error = (await spoken(stack, files={"file_url": (None, url)})).json()["error"]
    assert (error["message"], error["param"]) == ("file_url is no recording.", "file_url")


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ([" one. ", "  ", "two\n", ""], "one. two"),
        (["你好。", " 世界", "Quire", "です"], "你好。世界 Quire です"),
        ([" ", "a  b ", " c"], "a  b c"),
    ],
)
async def test_seams(
    stack: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch, texts: list[str], whole: str
) -> None:
    renderer.cut_into(len(texts))
    speaks(monkeypatch, texts)
    many = {"max_completion_tokens": "99"}
    assert (await spoken(stack, **many)).json()["text"] == whole
    chunks = await streamed(stack, **many)
    assert content(chunks) == whole
    reasons = [chunk["choices"][0].get("finish_reason") for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


async def test_streams(stack: GatewayStack, renderer: Renderer, most_live: list[int]) -> None:
    renderer.cut_into(9)
    *chunks, usage = await streamed(stack, stream_include_usage="true")
    assert content(chunks) == " ".join(SAID)
    assert [chunk["choices"][0].get("finish_reason") for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    details = {"cached_tokens": 0}
    tokens = {"prompt_tokens": 9, "completion_tokens": 27, "total_tokens": 36, "prompt_tokens_details": details}
    assert usage["usage"] == tokens
    assert most_live[0] <= MOST_LIVE


async def test_the_end_tells_if_any_piece_was_cut_short(
    stack: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer.cut_into(3)
    speaks(monkeypatch, ["A", "BCDEF", "G"])
    chunks = await streamed(stack)
    assert content(chunks) == "A BCD G"
    assert chunks[-1]["choices"][0] | {"delta": None} == {"delta": None, "finish_reason": "length", "stop_reason": None}


async def test_a_few_pieces_are_worked_on_at_a_time(stack: GatewayStack, renderer: Renderer) -> None:
    """All are taken at once, so that whoever cuts recordings can go on; and all end when the client hangs up."""
    renderer.cut_into(9)
    task = asyncio.create_task(spoken(stack, **ENDLESS))
    await eventually(lambda: len(stack.engine.live) == MOST_LIVE, "the pieces do not start")
    await asyncio.sleep(0.1)
    assert (renderer.num_cut, renderer.num_cutting, len(stack.engine.record.started)) == (9, 0, MOST_LIVE)
    task.cancel()
    await eventually(lambda: not stack.engine.live, "the pieces go on")
    assert len(stack.engine.record.aborted) == MOST_LIVE
    await eventually(lambda: stack.context.pipeline.num_live == 0, "the texts stay open")
    assert stack.context.uploads._free == 2**30


async def test_a_stream_that_is_closed(stack: GatewayStack, renderer: Renderer) -> None:
    renderer.cut_into(9)
    async with stack.client.stream("POST", PATH, data=ENDLESS | {"stream": "true"}, files=SPEECH) as response:
        async for _ in response.aiter_lines():
            break
    await eventually(lambda: not stack.engine.live, "the pieces go on")
    assert 1 <= len(stack.engine.record.started) == len(stack.engine.record.aborted) <= MOST_LIVE


async def test_an_error_of_a_later_piece_ends_the_request(
    stack: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer.cut_into(9)
    start = Pipeline.start

    async def fail(self: Pipeline, request: GenerationRequest) -> RequestState:
        state = await start(self, request)
        if request.request_id.endswith("-2"):
            state.fail(Unavailable("The worker is gone."))
        return state

    monkeypatch.setattr(Pipeline, "start", fail)
    response = await spoken(stack)
    assert (response.status_code, response.json()["error"]["message"]) == (503, "The worker is gone.")
    chunks = await streamed(stack)
    assert content(chunks) == "AHO BIP"
    assert chunks[-1]["error"]["message"] == "The worker is gone."
    await eventually(lambda: not stack.engine.live and renderer.num_cutting == 0, "the pieces go on")


async def test_an_error_of_the_tokenizer_service(stack: GatewayStack, renderer: Renderer) -> None:
    renderer.cut_into(2)
    renderer.cut_error = InvalidRequest("The recording is broken.", parameter="messages")
    for stream in ("false", "true"):
        response = await spoken(stack, stream=stream)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
    assert not stack.engine.record.started and stack.context.uploads._free == 2**30
    renderer.pieces = ()
    assert (await spoken(stack)).json()["error"]["message"] == "The recording is broken."
    renderer.cut_error = None
    assert (await spoken(stack)).status_code == 500


async def test_a_failure_of_the_gateway_itself(
    stack: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer.cut_into(3)
    start = Pipeline.start

    async def fail(self: Pipeline, request: GenerationRequest) -> RequestState:
        if request.part_of:
            raise ZeroDivisionError("secret")
        return await start(self, request)

    monkeypatch.setattr(Pipeline, "start", fail)
    response = await spoken(stack)
    assert response.status_code == 500 and "secret" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_aborting_the_request_ends_all_pieces(stack: GatewayStack, renderer: Renderer, stream: bool) -> None:
    renderer.cut_into(9)
    task = asyncio.create_task(spoken(stack, stream=str(stream).lower(), **ENDLESS))
    await eventually(lambda: len(stack.engine.live) == MOST_LIVE, "the pieces do not start")
    request_id = stack.engine.record.started[0].request_id
    assert stack.context.pipeline.abort({"", "other"}) == 0
    assert stack.context.pipeline.abort({request_id}) == MOST_LIVE
    response = await task
    assert response.status_code == 200
    assert not stream or '"finish_reason":"abort"' in response.text
    await eventually(lambda: not stack.engine.live and renderer.num_cutting == 0, "the pieces go on")
    assert len(stack.engine.record.started) <= MOST_LIVE + 1


async def test_uploads_are_held_while_pieces_are_cut(stack: GatewayStack, renderer: Renderer) -> None:
    renderer.cut_into(9)
    whole = stack.context.uploads._free
    task = asyncio.create_task(spoken(stack, **ENDLESS))
    await eventually(lambda: len(stack.engine.live) == MOST_LIVE, "the pieces do not start")
    assert stack.context.uploads._free < whole
    task.cancel()
    await eventually(lambda: stack.context.uploads._free == whole, "the room is not given back")
    renderer.cut_into(2)
    task = asyncio.create_task(spoken(stack, **ENDLESS))
    await eventually(lambda: len(stack.engine.live) == 2, "the pieces do not start")
    await eventually(lambda: stack.context.uploads._free == whole, "the room is kept after the last piece")
    task.cancel()
    await eventually(lambda: not stack.engine.live, "the pieces go on")
