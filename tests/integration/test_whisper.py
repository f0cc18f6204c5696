"""A whole stack that serves Whisper writes down what Transformers does, of recordings of any length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import transformers

from gateway.requests.languages import language_name
from quire.pcm import piece_ends
from tests.support.audio_files import RATE, Samples, audio_file, sine
from tests.support.audio_processors import CHUNK_SECONDS, NUM_MELS
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.whisper_models import likeliest_of, make_whisper_model, whisper_reference

pytestmark = pytest.mark.slow

ANSWER = 16
TONE = sine(1.7)
LONG = np.concatenate([sine(1.5), sine(1.9, 900, seed=2), sine(2.2, 600, seed=3)])
LIMIT = {"max_completion_tokens": str(ANSWER)}
EXTRACTOR = transformers.WhisperFeatureExtractor(feature_size=NUM_MELS, chunk_length=CHUNK_SECONDS)
TRANSCRIBE, TRANSLATE, WITHOUT_TIMES = "<|transcribe|>", "<|translate|>", "<|notimestamps|>"


def asked(language: str, task: str = TRANSCRIBE, before: str = "", ending: str = WITHOUT_TIMES) -> str:
    return f"{before}<|startoftranscript|><|{language}|>{task}{ending}"


@dataclass
class Served:
    """A stack, and what Transformers says of its model."""

    stack: Stack
    folder: Path
    tokenizer: Any
    client: openai.OpenAI

    @property
    def create(self) -> Any:
        return self.client.audio.transcriptions.create

    def tokens(self, samples: Samples, prompt: str) -> list[int]:
        ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        return whisper_reference(self.folder, features_of(samples), ids, ANSWER)

    def said(self, samples: Samples, prompt: str) -> str:
        """What a model that may write times or not says, without them."""
        text = self.tokenizer.decode(self.tokens(samples, prompt), skip_special_tokens=True)
        return re.sub(r"<\|[^|]*\|>", "", text).strip()

    def language_of(self, samples: Samples) -> str:
        codes = ("en", "de", "zh")
        prompt, *tokens = self.tokenizer.convert_tokens_to_ids(
            ["<|startoftranscript|>", *(f"<|{each}|>" for each in codes)]
        )
        return codes[tokens.index(likeliest_of(self.folder, features_of(samples), [prompt], tokens))]


def features_of(samples: Samples) -> Any:
    return EXTRACTOR(samples, sampling_rate=RATE, return_tensors="np")["input_features"]


def pieces_of(samples: Samples) -> list[Samples]:
    """As the tokenizer service cuts them, in whole numbers."""
    whole = np.rint(samples * 2**15).astype(np.int16)
    ends = piece_ends(whole, RATE, CHUNK_SECONDS)
    return [each.astype(np.float32) / 2**15 for each in np.split(whole, ends[:-1])]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = make_whisper_model(tmp_path_factory.mktemp("whisper"))
    running = start_stack(
        folder, tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32", "--served-model-name", "listener",
        "--kv-cache-memory-bytes", "64M", "--override-generation-config", '{"eos_token_id": []}',
    )  # fmt: skip
    try:
        running.wait_healthy()
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
            yield Served(running, folder, transformers.AutoTokenizer.from_pretrained(folder), client)
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def named(samples: Samples, kind: str = "wavf") -> tuple[str, bytes]:
    return f"speech.{kind}", audio_file(samples, kind)


def test_transcripts(served: Served) -> None:
    file = named(TONE)
    german = served.create(file=file, model="listener", language="de", extra_body=LIMIT)
    assert german.text == served.said(TONE, asked("de"))
    assert german.usage.model_dump() == {"type": "duration", "seconds": 2.0}
    found = served.create(file=file, model="listener", prompt="Say so", extra_body=LIMIT)
    language = served.language_of(TONE)
    assert found.text == served.said(TONE, asked(language, before="<|startofprev|> Say so"))
    url, form = f"{served.stack.url}/v1/audio/translations", {"model": "listener", "language": "de", **LIMIT}
    translated = httpx.post(url, data=form, files={"file": file}, timeout=60).json()
    assert translated == {"text": served.said(TONE, asked("de", TRANSLATE))}


def test_long_recordings(served: Served) -> None:
    pieces = pieces_of(LONG)
    assert len(pieces) > 2
    language = served.language_of(pieces[0])
    expected = " ".join(served.said(piece, asked(language)) for piece in pieces)
    file = named(LONG, "flac")
    whole = served.create(file=file, model="listener", extra_body=LIMIT)
    assert (whole.text, whole.usage.seconds) == (expected, 6)
    form = {"model": "listener", "stream": "true", "stream_include_usage": "true", **LIMIT}
    answer = httpx.post(f"{served.stack.url}/v1/audio/transcriptions", data=form, files={"file": file}, timeout=60)
    *chunks, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    read = [json.loads(chunk) for chunk in chunks]
    said = "".join(chunk["choices"][0]["delta"]["content"] for chunk in read if chunk["choices"])
    assert said.strip() == expected
    assert read[-1]["usage"]["completion_tokens"] == ANSWER * len(pieces)


def test_times(served: Served) -> None:
    """Segments lie within the recording, in order; subtitles have the same words."""
    file, pieces = named(LONG, "flac"), pieces_of(LONG)
    found = served.create(
        file=file, model="listener", language="en", response_format="verbose_json",
        timestamp_granularities=["segment"], extra_body=LIMIT,
    )  # fmt: skip
    assert (found.language, found.task) == (language_name("language", "en").lower(), "transcribe")
    assert found.duration == pytest.approx(len(LONG) / RATE, abs=0.01)
    assert found.segments
    times = [time for segment in found.segments for time in (segment.start, segment.end)]
    assert times == sorted(times) and 0 <= times[0] <= times[-1] <= found.duration + 0.01
    assert all(segment.avg_logprob < 0 for segment in found.segments)
    words = [served.said(piece, asked("en", ending="")) for piece in pieces]
    assert "".join(found.text.split()) == "".join("".join(words).split())
    assert "".join("".join(segment.text for segment in found.segments).split()) == "".join(found.text.split())
    subtitles = served.create(file=file, model="listener", language="en", response_format="srt", extra_body=LIMIT)
    assert subtitles.startswith("1\n00:00:0")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"language": "tlh"}, "must be the code of a language"),
        ({"prompt": "<|de|>"}, "special tokens"),
        ({"response_format": "diarized_json"}, "response_format"),
    ],
)
def test_refusals(served: Served, fields: dict[str, str], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(words)):
        served.create(file=named(TONE), model="listener", **fields)
    with pytest.raises(openai.BadRequestError, match="one recording"):
        served.client.completions.create(model="listener", prompt="Hello")
