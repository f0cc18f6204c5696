"""Speech: conversations with audio, transcriptions and translations; what the tokenizer service receives of them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from benchmarks.models import byte_tokenizer
from gateway.requests.choice_room import ChoiceRoom
from gateway.requests.served_model import ServedModel
from quire.errors import InvalidRequest
from quire.media import MAX_FILE_BYTES, MediaKind
from quire.options.media import MediaOptions
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.renderer import Renderer, says
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = bytes(range(256)) * 200  # more than a small body
SPEECH = {"file": ("ä.wav", FILE, "audio/wav")}
FEW = {"max_completion_tokens": "3"}  # of which the fake engine makes AHO
TRANSCRIPTIONS, TRANSLATIONS = PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
CHATS = ("/v1/chat/completions", "/tokenize")
QWEN3 = "Qwen3ASRForConditionalGeneration"
FLAMINGO = "AudioFlamingo3ForConditionalGeneration"
MARK = "<asr_text>"
MOST = MAX_FILE_BYTES[MediaKind.AUDIO]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = byte_tokenizer(8192)
    found.add_special_tokens({"additional_special_tokens": [MARK]})
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayStack]:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    async with running_gateway(folder, media=MediaOptions(limit_mm_per_prompt="audio=2")) as running:
        yield running
        assert running.context.pipeline.num_live == running.context.statistics.num_live == 0


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    found = Renderer()
    found.replace_in(monkeypatch)
    return found


@pytest.fixture(autouse=True)
def model(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Changes of the model: it reads audio."""
    changes: dict[str, Any] = {"accepts_audio": True, "architecture": "Qwen2AudioForConditionalGeneration"}
    served = stack.context.fleet.model

    def changed(*arguments: Any) -> ServedModel:
        return replace(served(*arguments), **changes)

    monkeypatch.setattr(stack.context.fleet, "model", changed)
    return changes


async def spoken(stack: GatewayStack, path: str = TRANSCRIPTIONS, files: Any = SPEECH, **fields: Any) -> httpx.Response:
    return await stack.client.post(path, data=FEW | fields, files=files)


async def refused(
    stack: GatewayStack, *words: str, status: int = 400, path: str = TRANSCRIPTIONS, **fields: Any
) -> Any:
    response = await spoken(stack, path, **fields)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert all(each in error["message"] for each in words), error
    return error["param"]


def audio(file: bytes, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(file).decode(), "format": form}}


def asked(*content: Any) -> dict[str, Any]:
    return {"model": "fake", "max_tokens": 2, "messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize("path", CHATS)
async def test_conversations_with_audio(stack: GatewayStack, renderer: Renderer, path: str) -> None:
    url = f"data:video/webm;base64,{base64.b64encode(b'two').decode()}"
    response = await stack.post(path, asked(audio(b"one"), "A", {"type": "audio_url", "audio_url": {"url": url}}))
    assert response.status_code == 200, response.text
    assert renderer.messages[0]["content"] == [{"type": "audio"}, {"type": "text", "text": "A"}, {"type": "audio"}]
    assert list(renderer.last.audios) == [b"one", b"two"]
    assert renderer.asked[-1][1] == 60


@pytest.mark.parametrize("path", CHATS)
async def test_what_conversations_may_not_have(
    stack: GatewayStack, renderer: Renderer, model: dict[str, Any], path: str
) -> None:
    response = await stack.post(path, asked(*[audio(b"one")] * 3))
    assert "has 3 audio files; at most 2 are allowed (--limit-mm-per-prompt)" in response.json()["error"]["message"]
    response = await stack.post(path, asked({"type": "audio_url", "audio_url": "cid:file"}))
    assert "a URL of the scheme 'cid'" in response.json()["error"]["message"]
    model |= {"accepts_audio": False, "accepts_images": True}
    response = await stack.post(path, asked("A", audio(b"one")))
    message = response.json()["error"]["message"]
    assert message == "messages[0].content[1] is an audio, but this model reads text and images only."
    assert not renderer.asked


async def test_a_transcription(stack: GatewayStack, renderer: Renderer) -> None:
    response = await spoken(stack)
    assert response.status_code == 200, response.text
    assert response.json() == {"text": "AHO", "usage": {"type": "duration", "seconds": 3}}
    assert list(renderer.last.audios) == [FILE]
    assert renderer.messages == [
        {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "Transcribe the speech."}]}
    ]
    sampling = stack.engine.record.started[-1].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0, 3)
    response = await spoken(stack, response_format="text", model="fake")
    assert (response.text, response.headers["content-type"]) == ("AHO\n", "text/plain; charset=utf-8")


async def test_a_translation(stack: GatewayStack, renderer: Renderer) -> None:
    assert (await spoken(stack, TRANSLATIONS)).json() == {"text": "AHO"}
    assert renderer.messages[0]["content"][1]["text"] == "Translate the speech to English."
    assert (await spoken(stack, TRANSLATIONS, to_language="fr", language="de", prompt="Names: Ann.")).status_code == 200
    words = "Translate the speech to French. Names: Ann. The language is German."
    assert renderer.messages[0]["content"][1]["text"] == words


async def test_fields(stack: GatewayStack, renderer: Renderer) -> None:
    numbers: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 11, "frequency_penalty": 0.5,
        "repetition_penalty": 1.5, "presence_penalty": 0.25,
    }  # fmt: skip
    neutral: dict[str, Any] = {
        "chunking_strategy": "auto", "timestamp_granularities[]": "segment", "n": "1", "use_beam_search": "false",
        "stream": "false", "include[]": "", "language": "", "prompt": "", "response_format": "json",
    }  # fmt: skip
    response = await spoken(stack, **numbers, **neutral)
    assert response.status_code == 200, response.text
    sampling = stack.engine.record.started[-1].sampling
    assert {name: getattr(sampling, name) for name in numbers} == numbers


@pytest.mark.parametrize(
    ("language", "begun"), [("", None), ("zh", [{"type": "text", "text": f"language Chinese{MARK}"}])]
)
async def test_qwen3_asr(
    stack: GatewayStack, tokenizer: Any, renderer: Renderer, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    language: str, begun: Any,
) -> None:  # fmt: skip
    model["architecture"] = QWEN3
    says(monkeypatch, lambda request: tokenizer.encode(f"{'' if begun else f'language English{MARK}'}Hello.<|im_end|>"))
    response = await spoken(stack, language=language, prompt="Quire", max_completion_tokens="99")
    assert response.json()["text"] == "Hello."
    assert [message["role"] for message in renderer.messages] == ["system", "user", *(["assistant"] if begun else [])]
    assert renderer.last.continue_final_message == bool(begun)
    assert renderer.last.add_generation_prompt == (not begun)
    assert not begun or renderer.messages[-1]["content"] == begun
    events = await streamed(stack, language=language, max_completion_tokens="99")
    assert "".join(event["choices"][0]["delta"]["content"] for event in events[:-1]) == "Hello."
    assert await refused(stack, "Qwen3-ASR does not translate", path=TRANSLATIONS) == "model"


async def test_audio_flamingo(
    stack: GatewayStack, tokenizer: Any, renderer: Renderer, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model["architecture"] = FLAMINGO
    says(monkeypatch, lambda request: tokenizer.encode('The spoken content of the audio is "Hello.".<|im_end|>'))
    response = await spoken(stack, max_completion_tokens="99")
    assert response.json()["text"] == "Hello."
    assert [part["type"] for part in renderer.messages[0]["content"]] == ["text", "audio"]


async def streamed(stack: GatewayStack, path: str = TRANSCRIPTIONS, **fields: Any) -> list[Any]:
    response = await spoken(stack, path, stream="true", **fields)
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    contents = [line.removeprefix("data: ") for line in response.text.strip().split("\n\n")]
    return [json.loads(content) if content != "[DONE]" else content for content in contents]


@pytest.mark.parametrize(
    ("path", "prefix", "kind"), [(TRANSCRIPTIONS, "trsc", "transcription"), (TRANSLATIONS, "trsl", "translation")]
)
async def test_streams(stack: GatewayStack, renderer: Renderer, path: str, prefix: str, kind: str) -> None:
    *chunks, done = await streamed(stack, path)
    assert done == "[DONE]"
    for chunk in chunks:
        assert chunk["id"].startswith(f"{prefix}-") and chunk["id"] == chunks[0]["id"]
        assert (chunk["object"], chunk["model"]) == (f"{kind}.chunk", "fake")
        own = {"text"} if chunk is chunks[-1] else {"delta"}
        assert set(chunk) == {"id", "object", "created", "model", "choices", "type"} | own
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "AHO"
    assert all(set(chunk["choices"][0]) == {"delta"} for chunk in chunks[:-1])
    assert chunks[-1]["choices"][0] | {"delta": None} == {"delta": None, "finish_reason": "length", "stop_reason": None}


async def test_usage_in_streams(stack: GatewayStack, renderer: Renderer) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    *chunks, last, _ = await streamed(stack, stream_include_usage="true")
    assert (last["choices"], last["usage"]) == ([], usage)
    assert not any("usage" in chunk for chunk in chunks)
    *chunks, _ = await streamed(stack, stream_continuous_usage_stats="true")
    assert chunks[-1]["usage"] == usage and all("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "words", "parameter"),
    [
        ({"response_format": "verbose_json"}, "'verbose_json' needs timestamps, which this", "response_format"),
        ({"response_format": "srt"}, "needs timestamps", "response_format"),
        ({"response_format": "vtt", "stream": "true"}, "'vtt' cannot be streamed", "response_format"),
        ({"response_format": "xml"}, "'xml' is not known; it must be json, text, verbose_json, srt or vtt",
         "response_format"),
        ({"response_format": "diarized_json"}, "does not tell speakers apart", "response_format"),
        ({"timestamp_granularities[]": ["segment", "word"]}, "only segments have timestamps",
         "timestamp_granularities"),
        ({"chunking_strategy": '{"type": "server_vad"}'}, "chunking_strategy is refused", "chunking_strategy"),
        ({"include[]": "logprobs"}, "include is refused", "include"),
        ({"known_speaker_names[]": "Ann"}, "does not tell speakers apart", "known_speaker_names"),
        ({"hotwords": "Quire"}, "write the words into prompt", "hotwords"),
        ({"n": "2"}, "n is refused", "n"),
        ({"use_beam_search": "true"}, "use_beam_search is refused", "use_beam_search"),
        ({"vllm_xargs": '{"a": 1}'}, "vllm_xargs is refused", "vllm_xargs"),
        ({"langauge": "de"}, "'langauge' is not a field of this endpoint. Did you mean language?", "langauge"),
        ({"language": "xx"}, "language is 'xx'; it must be the code of a language: ar, ", "language"),
        ({"temperature": ["0", "1"]}, "temperature is given twice", "temperature"),
        ({"temperature": "hot"}, "temperature: Expected `float`", "temperature"),
        ({"temperature": "3"}, "temperature is 3", "temperature"),
        ({"max_completion_tokens": "0"}, "max_completion_tokens is 0; it must be at least 1", "max_completion_tokens"),
        ({"prompt": b"\xff"}, "prompt must be a text in UTF-8", "prompt"),
    ],
)  # fmt: skip
async def test_wrong_fields(
    stack: GatewayStack, renderer: Renderer, path: str, fields: dict[str, Any], words: str, parameter: str
) -> None:
    assert await refused(stack, words, path=path, **fields) == parameter
    assert not renderer.asked and (not renderer.files or parameter in ("temperature", "max_completion_tokens"))


async def test_to_language_is_for_translations(stack: GatewayStack, renderer: Renderer) -> None:
    assert await refused(stack, "'to_language' is not a field", to_language="fr") == "to_language"
    assert await refused(stack, "to_language is 'xx'", path=TRANSLATIONS, to_language="xx") == "to_language"


def form(**fields: str) -> Any:
    """A form without a file."""
    return {name: (None, value) for name, value in fields.items()}


@pytest.mark.parametrize("path", PATHS)
async def test_files_by_url(stack: GatewayStack, renderer: Renderer, path: str) -> None:
    url = f"data:audio/wav;base64,{base64.b64encode(FILE).decode()}"
    response = await spoken(stack, path, files=form(file_url=url))
    assert (response.status_code, response.json()["text"]) == (200, "AHO"), response.text
    assert list(renderer.last.audios) == [FILE]
    assert len(renderer.asked) == 1
    both = SPEECH | form(file_url=url)
    assert await refused(stack, "file and file_url are both given", path=path, files=both) == "file_url"
    for wrong, words in {
        "http://127.0.0.1/a.wav": "file_url is an http:// URL",
        "file:///etc/passwd": "--allowed-local-media-path",
        "cid:file": "a URL of the scheme 'cid'",
        "speech.wav": "URL",
    }.items():
        assert await refused(stack, words, path=path, files=form(file_url=wrong)) == "file_url"
    renderer.error = InvalidRequest("The audio is too long.", parameter="messages")
    assert await refused(stack, "The audio is too long.", path=path, files=form(file_url=url)) == "file_url"


@pytest.mark.parametrize("path", PATHS)
async def test_wrong_files(stack: GatewayStack, renderer: Renderer, path: str, model: dict[str, Any]) -> None:
    none: Any = {"model": (None, b"fake")}
    text: Any = {"file": (None, FILE)}
    for files in (none, text):
        assert await refused(stack, "Expected 'file' to be a file", path=path, files=files) == "file"
    assert await refused(stack, "file is empty", path=path, files={"file": ("a.wav", b"")}) == "file"
    both = [("file", ("a.wav", b"a")), ("file", ("b.wav", b"b"))]
    assert await refused(stack, "file is given twice", path=path, files=both) == "file"
    assert await refused(stack, "model must be a text", path=path, files=SPEECH | {"model": ("a", b"b")}) == "model"
    response = await stack.client.post(path, json={"file": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, 400)
    assert "Only 'multipart/form-data'" in response.json()["error"]["message"]
    response = await stack.client.post(
        path, content=b"--a", headers={"content-type": "multipart/form-data; boundary=a"}
    )
    assert "Part 0 of the form" in response.json()["error"]["message"]
    model["accepts_audio"] = False
    assert await refused(stack, "The model 'fake' reads no audio", path=path) == "model"
    assert await refused(stack, "'other'", status=404, path=path, model="other") == "model"
    assert not renderer.asked


async def test_the_size_of_files(stack: GatewayStack, renderer: Renderer) -> None:
    """Forms are not bound by --max-body-bytes."""
    response = await spoken(stack, files={"file": ("a.wav", bytes(MOST))})
    assert response.status_code == 200, response.text
    assert len(renderer.last.audios[0]) == MOST
    await refused(stack, "Maximum file size exceeded", "25 MiB", status=413, files={"file": ("a", bytes(MOST + 1))})
    much = {"file": ("a", bytes(MOST + 2**20))}
    await refused(stack, "Maximum file size exceeded", "25 MiB", status=413, files=much)
    assert len(renderer.asked) == 1


async def test_uploads_have_a_bound(stack: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.context, "uploads", ChoiceRoom(2 * len(FILE), "bytes of uploads"))
    assert await refused(stack, "there is no room for", "more: try again", status=503) is None
    small = {"file": ("a.wav", FILE[:1000])}
    for _ in range(200):  # what has been read makes room for others
        assert (await spoken(stack, files=small)).status_code == 200


async def test_errors_of_the_tokenizer_service_name_the_file(stack: GatewayStack, renderer: Renderer) -> None:
    renderer.error = InvalidRequest("The audio is too long.", parameter="messages")
    assert await refused(stack, "The audio is too long.") == "file"
    renderer.error = InvalidRequest("The prompt is too long.", parameter="prompt")
    assert await refused(stack, "The prompt is too long.") == "file"


async def test_a_limit_of_none(stack: GatewayStack, renderer: Renderer, tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, media=MediaOptions(limit_mm_per_prompt="audio=0")) as running:
        served = running.context.fleet.model
        running.context.fleet.model = lambda *names: replace(served(*names), accepts_audio=True)  # type: ignore[method-assign]
        assert await refused(running, "at most 0 are allowed (--limit-mm-per-prompt)") == "file"


async def test_a_client_that_hangs_up(stack: GatewayStack, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = len(stack.engine.record.aborted)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(spoken(stack, max_completion_tokens="4000", response_format="text"), 0.3)
    await eventually(lambda: len(stack.engine.record.aborted) == aborted + 1, "the engine goes on")


async def test_openais_client(stack: GatewayStack, renderer: Renderer) -> None:
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="unused", max_retries=0)
    few = {"max_completion_tokens": 3}
    async with client:
        found = await client.audio.transcriptions.create(file=("a.wav", FILE), model="fake", extra_body=few)
        assert (found.text, found.usage and found.usage.type) == ("AHO", "duration")
        text: Any = await client.audio.transcriptions.create(
            file=("a.wav", FILE), model="fake", response_format="text", language="de", temperature=0.0, extra_body=few
        )
        assert text == "AHO\n"
        stream = await client.audio.transcriptions.create(
            file=("a.wav", FILE), model="fake", stream=True, extra_body=few | {"stream_include_usage": True}
        )
        events = [each async for each in stream]
        assert "".join(each.delta for each in events if each.type == "transcript.text.delta") == "AHO"
        assert [each.text for each in events if each.type == "transcript.text.done"] == ["AHO"]
        with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI's own models no longer translate
            translated = await client.audio.translations.create(file=("a.wav", FILE), model="fake", extra_body=few)
        assert translated.text == "AHO"
        with pytest.raises(openai.BadRequestError, match="needs timestamps"):
            await client.audio.transcriptions.create(file=FILE, model="fake", response_format="srt")
        with pytest.raises(openai.APIStatusError, match="Maximum file size exceeded"):
            await client.audio.transcriptions.create(file=bytes(MOST + 1), model="fake")
