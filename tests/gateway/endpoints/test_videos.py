"""Conversations with videos: what the tokenizer service receives, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.requests.served_model import ServedModel
from gateway.services.tokenizers import Tokenizers
from quire.media import MediaKind
from quire.options.media import MediaOptions
from quire.rpc.settings import CALL_SECONDS
from quire.v1 import tokenizer_pb2
from tests.support.gateway_stack import Gateway, GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"model": "fake", "max_tokens": 2}
FRAMES = [b"one", b"two", b"three"]
FEW = {"video": {"num_frames": 2}}
PATHS = ("/v1/chat/completions", "/tokenize")


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def video(file: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded(file)}"}}


def image(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(file)}"}}


def asked(*content: Any) -> dict[str, Any]:
    return CHAT | {"messages": [{"role": "user", "content": list(content)}]}


@dataclass
class Renderer:
    """Stands for the tokenizer service, as far as conversations are rendered.

    Attributes:
        asked: the requests, with their time limits.
    """

    asked: list[tuple[tokenizer_pb2.RenderChatRequest, float | None]] = field(default_factory=list)

    @property
    def last(self) -> tokenizer_pb2.RenderChatRequest:
        return self.asked[-1][0]


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    found, call = Renderer(), Tokenizers.call

    async def record(self: Tokenizers, method: str, request: Any, seconds: float | None = None) -> Any:
        if method != "RenderChat":
            return await call(self, method, request, seconds)
        found.asked.append((request, seconds))
        return tokenizer_pb2.RenderChatResponse(text="A", sequence=tokenizer_pb2.TokenSequence(token_ids=[65]))

    monkeypatch.setattr(Tokenizers, "call", record)
    monkeypatch.setattr(ServedModel, "media", tuple(MediaKind))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trusting(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    media = MediaOptions(trust_request_mm_kwargs=True, limit_mm_per_prompt='{"video": {"count": 2, "num_frames": 8}}')
    async with running_gateway(tokenizer_folder, media=media, enable_scale_out=True) as stack:
        yield stack


async def refused(gateway: Gateway, path: str, body: Any, *words: str) -> dict[str, Any]:
    response = await gateway.post(path, body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert all(each in error["message"] for each in words), error
    return error


@pytest.mark.parametrize("path", PATHS)
async def test_what_the_tokenizer_service_receives(trusting: GatewayStack, renderer: Renderer, path: str) -> None:
    frames = f"data:video/jpeg;base64,{','.join(map(encoded, FRAMES))}"
    content = (image(b"cat"), "A", video(b"dog"), {"type": "video_url", "video_url": frames}, image(b"dot"))
    response = await trusting.post(path, asked(*content) | {"media_io_kwargs": FEW})
    assert response.status_code == 200, response.text
    asked_for = renderer.last
    assert b'[{"type":"image"},{"type":"text","text":"A"},{"type":"video"},{"type":"video"},{"type":"image"}]' in (
        asked_for.messages_json
    )
    assert list(asked_for.images) == [b"cat", b"dot"]
    assert [list(each.files) for each in asked_for.videos] == [[b"dog"], FRAMES]
    assert asked_for.media_io_kwargs_json == b'{"video":{"num_frames":2}}'


@pytest.mark.parametrize(
    ("content", "seconds"),
    [(["A"], None), ([image(b"cat")], 30), ([video(b"dog")], 60), ([image(b"a"), video(b"b")], 60)],
)
async def test_the_time_for_rendering(
    trusting: GatewayStack, renderer: Renderer, content: list[Any], seconds: float | None
) -> None:
    response = await trusting.post("/v1/chat/completions", asked(*content))
    assert response.status_code == 200, response.text
    assert renderer.asked[-1] == (renderer.last, seconds)
    assert CALL_SECONDS < 30
    assert not renderer.last.media_io_kwargs_json


@pytest.mark.parametrize("path", PATHS)
async def test_the_number_of_videos_is_limited(trusting: GatewayStack, renderer: Renderer, path: str) -> None:
    words = ("has 3 videos; at most 2 are allowed (--limit-mm-per-prompt)",)
    error = await refused(trusting, path, asked(*[video(b"dog")] * 3, *[image(b"cat")] * 9), *words)
    assert error["param"] == "messages"
    assert not renderer.asked


@pytest.mark.parametrize("path", PATHS)
async def test_settings_of_a_request(
    gateway: GatewayStack, trusting: GatewayStack, renderer: Renderer, path: str
) -> None:
    body = asked(video(b"dog"))
    error = await refused(gateway, path, body | {"media_io_kwargs": FEW}, "--trust-request-mm-kwargs")
    assert error["param"] == "media_io_kwargs"
    neutral: Any
    for wrong in ({"video": {"frames": 1}}, {"audio": {"rate": 1}}, [1]):
        error = await refused(trusting, path, body | {"media_io_kwargs": wrong}, "media_io_kwargs")
    for neutral in (None, {}):
        response = await gateway.post(path, body | {"media_io_kwargs": neutral})
        assert response.status_code == 200, response.text
        assert not renderer.last.media_io_kwargs_json


async def test_settings_where_there_are_no_videos(gateway: GatewayStack, trusting: GatewayStack) -> None:
    """Not even a server that accepts them in chats ignores them elsewhere."""
    body = CHAT | {"prompt": "A", "media_io_kwargs": FEW}
    for path in ("/v1/completions", "/tokenize"):
        for each in (gateway, trusting):
            error = await refused(each, path, body, "media_io_kwargs is refused", "text only")
            assert error["param"] == "media_io_kwargs"
    response = await gateway.post("/v1/completions", body | {"media_io_kwargs": {}})
    assert response.status_code == 200, response.text


async def test_a_model_that_reads_no_videos(
    gateway: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for media, read in (((), "text"), ((MediaKind.IMAGE,), "text and images")):
        monkeypatch.setattr(ServedModel, "media", media)
        for path in PATHS:
            words = f"messages[0].content[1] is a video, but this model reads {read} only."
            assert (await refused(gateway, path, asked("A", video(b"dog")), words))["param"] == "messages"
    assert not renderer.asked
