"""Transcriptions and translations by Whisper: its languages, and when words are spoken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from benchmarks.models import byte_tokenizer
from gateway.requests.served_model import ServedModel
from gateway.requests.whisper import ARCHITECTURE
from tests.support.fake_engine import Request
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.renderer import FIRST_TOKEN, LOGPROB, Renderer, says

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRANSCRIPTIONS, TRANSLATIONS = PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
SPEECH = {"file": ("a.wav", b"long", "audio/wav")}
LANGUAGES = ("<|en|>", "<|de|>", "<|zh|>")
START, NO_TIMES = "<|startoftranscript|>", "<|notimestamps|>"
TIMED = {
    0: "<|0.00|> Hello there.<|2.50|><|2.50|> How are<|4.00|>",
    1: " you<|0.50|><|nospeech|> \u00e4?<|99.00|><|3.00|> Fine",
}
WORDS = [
    (0.0, 2.5, " Hello there."), (2.5, 4.0, " How are"), (10.0, 10.5, " you"), (10.5, 20.0, " \u00e4?"),
    (20.0, 20.0, " Fine"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = byte_tokenizer(8192)
    marks = ("<|startoftranscript|>", "<|notimestamps|>", "<|nospeech|>", *LANGUAGES)
    found.add_special_tokens({"additional_special_tokens": list(marks)})
    found.add_tokens([f"<|{number / 2:.2f}|>" for number in range(20)])
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayStack]:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    async with running_gateway(folder) as running:
        yield running
        assert running.context.pipeline.num_live == running.context.statistics.num_live == 0


@pytest.fixture
def renderer(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> Renderer:
    found = Renderer()
    found.replace_in(monkeypatch)
    stack.engine.record.started.clear()
    return found


@pytest.fixture(autouse=True)
def model(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Changes of the model: it is a Whisper."""
    changes: dict[str, Any] = {"accepts_audio": True, "architecture": ARCHITECTURE}
    served = stack.context.fleet.model

    def changed(*arguments: Any) -> ServedModel:
        return replace(served(*arguments), **changes)

    monkeypatch.setattr(stack.context.fleet, "model", changed)
    return changes


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> Callable[[Mapping[int, str]], None]:
    """Makes the engine hear German, and write a text for each piece."""

    def speak(texts: Mapping[int, str]) -> None:
        def said(request: Request) -> list[int]:
            if request.generation.sampling.allowed_token_ids:
                return list(tokenizer.encode("<|de|>"))
            number = request.generation.prompt_token_ids[0] - FIRST_TOKEN
            return list(tokenizer.encode(f"{texts[number]}<|im_end|>"))

        says(monkeypatch, said)

    return speak


async def spoken(stack: GatewayStack, path: str = TRANSCRIPTIONS, **fields: Any) -> httpx.Response:
    return await stack.client.post(path, data={"max_completion_tokens": "999"} | fields, files=SPEECH)


async def refused(stack: GatewayStack, words: str, path: str = TRANSCRIPTIONS, **fields: Any) -> Any:
    response = await spoken(stack, path, **fields)
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]["message"]
    return response.json()["error"]["param"]


async def test_a_language_that_is_given(stack: GatewayStack, renderer: Renderer, speaks: Any) -> None:
    renderer.cut_into(2)
    speaks({0: "<|0.00|> Guten", 1: " Tag.<|2.50|>"})
    assert (await spoken(stack, language="DE", prompt="Namen: Ann.")).json()["text"] == "Guten Tag."
    assert renderer.texts == [f"<|startofprev|> Namen: Ann.{START}<|de|><|transcribe|>{NO_TIMES}"] * 2
    content = renderer.messages[0]["content"]
    assert [part["type"] for part in content] == ["audio", "text"]
    assert not renderer.last.add_generation_prompt and not renderer.last.continue_final_message


async def test_a_language_that_is_heard(stack: GatewayStack, renderer: Renderer, speaks: Any, tokenizer: Any) -> None:
    renderer.cut_into(2)
    speaks({0: " Guten", 1: " Tag."})
    assert (await spoken(stack)).json()["text"] == "Guten Tag."
    assert renderer.texts == [START, *[f"{START}<|de|><|transcribe|>{NO_TIMES}"] * 2]
    asked, *pieces = stack.engine.record.started
    assert sorted(asked.sampling.allowed_token_ids) == sorted(tokenizer.convert_tokens_to_ids(list(LANGUAGES)))
    assert (asked.sampling.max_tokens, asked.sampling.temperature) == (1, 0)
    assert [list(request.audios) for request, _ in renderer.asked] == [[b"0"], [b"0"], [b"1"]]
    first = pieces[0].request_id
    assert (asked.request_id, pieces[1].request_id) == (f"{first}-language", f"{first}-1")
    renderer.asked.clear()
    assert (await spoken(stack, TRANSLATIONS, to_language="EN")).json() == {"text": "Guten Tag."}
    assert renderer.texts[1:] == [f"{START}<|de|><|translate|>{NO_TIMES}"] * 2


async def test_what_is_refused(stack: GatewayStack, renderer: Renderer) -> None:
    assert await refused(stack, "language is 'fil'; it must be", language="fil") == "language"
    assert await refused(stack, "which this model does not know; it knows en, zh, de.", language="yue") == "language"
    assert await refused(stack, "special tokens: they are not allowed", prompt="<|en|>") == "prompt"
    assert await refused(stack, "translates to English only", TRANSLATIONS, to_language="fr") == "to_language"
    words = {"timestamp_granularities[]": "word", "response_format": "verbose_json"}
    assert await refused(stack, "only segments have timestamps", **words) == "timestamp_granularities"
    assert not renderer.files


async def test_models_of_english(stack: GatewayStack, renderer: Renderer, speaks: Any, model: dict[str, Any]) -> None:
    """Their tokenizers have tokens for languages nevertheless."""
    model["vocab_size"] = 51864
    speaks(TIMED)
    assert (await spoken(stack, language="en")).status_code == 200
    found = (await spoken(stack, response_format="verbose_json", prompt="Ann")).json()
    assert found["language"] == "english"
    assert renderer.texts == [f"{START}{NO_TIMES}", f"<|startofprev|> Ann{START}"]
    assert await refused(stack, "knows English only", language="de") == "language"
    assert await refused(stack, "does not translate", TRANSLATIONS) == "model"


async def test_a_vocabulary_without_languages(
    stack: GatewayStack, renderer: Renderer, speaks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.services.speech.language_token", lambda code: f"<{code}|>")
    monkeypatch.setattr(stack.context.speech, "_whispers", {})
    speaks({0: "Hi"})
    assert (await spoken(stack)).json()["text"] == "Hi"
    assert renderer.texts == [f"{START}{NO_TIMES}"]


@pytest.mark.parametrize(
    ("path", "task", "language"), [(TRANSCRIPTIONS, "transcribe", "german"), (TRANSLATIONS, "translate", "english")]
)
async def test_times(
    stack: GatewayStack, renderer: Renderer, speaks: Any, tokenizer: Any, path: str, task: str, language: str
) -> None:
    renderer.cut_into(2)
    speaks(TIMED)
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "segment", "temperature": "0.5"}
    found = (await spoken(stack, path, **fields)).json()
    segments = found.pop("segments")
    assert found == {
        "task": task, "language": language, "duration": 20.0, "text": "Hello there. How are you \u00e4? Fine",
        "usage": {"type": "duration", "seconds": 20},
    }  # fmt: skip
    assert [(each["start"], each["end"], each["text"]) for each in segments] == WORDS
    assert [each["id"] for each in segments] == list(range(5))
    assert [each["seek"] for each in segments] == [0, 0, 1000, 1000, 1000]
    assert [tokenizer.decode(each["tokens"]) for each in segments] == [text for *_, text in WORDS]
    assert {(each["avg_logprob"], each["temperature"]) for each in segments} == {(LOGPROB, 0.5)}
    assert segments[0]["compression_ratio"] == pytest.approx(13 / 21)
    assert renderer.texts[1:] == [f"{START}<|de|><|{task}|>"] * 2


async def test_subtitles(stack: GatewayStack, renderer: Renderer, speaks: Any) -> None:
    renderer.pieces = [(0.0, 10.0, b"0"), (3600.25, 10.0, b"1")]
    speaks(TIMED)
    response = await spoken(stack, response_format="srt", language="de")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text.startswith("1\n00:00:00,000 --> 00:00:02,500\nHello there.\n\n2\n")
    assert response.text.endswith("5\n01:00:10,250 --> 01:00:10,250\nFine\n\n")
    response = await spoken(stack, response_format="vtt", language="de")
    assert response.headers["content-type"] == "text/vtt; charset=utf-8"
    assert response.text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello there.\n\n00:00:02.500 -->")
    assert not any(each.sampling.HasField("logprobs") for each in stack.engine.record.started)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["verbose_json", "srt", "vtt"])
async def test_times_are_not_streamed(stack: GatewayStack, renderer: Renderer, path: str, form: str) -> None:
    words = f"response_format '{form}' cannot be streamed"
    assert await refused(stack, words, path, response_format=form, stream="true") == "response_format"


async def test_openais_client(stack: GatewayStack, renderer: Renderer, speaks: Any) -> None:
    renderer.cut_into(2)
    speaks(TIMED)
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="unused", max_retries=0)
    async with client:
        found = await client.audio.transcriptions.create(
            file=("a.wav", b"long"), model="fake", response_format="verbose_json", timestamp_granularities=["segment"]
        )
        assert (found.language, found.duration) == ("german", 20.0)
        assert found.segments and [(each.start, each.end, each.text) for each in found.segments] == WORDS
        assert found.usage and (found.usage.type, found.usage.seconds) == ("duration", 20)
        with pytest.warns(DeprecationWarning, match="deprecated"):
            translated = await client.audio.translations.create(
                file=("a.wav", b"long"), model="fake", response_format="verbose_json"
            )
        assert (translated.language, len(translated.segments or ())) == ("english", 5)
        with pytest.warns(DeprecationWarning, match="deprecated"):
            subtitles: Any = await client.audio.translations.create(
                file=("a.wav", b"long"), model="fake", response_format="vtt"
            )
        assert subtitles.startswith("WEBVTT\n\n")
