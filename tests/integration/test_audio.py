"""Whole stacks that serve models which read audio answer as Transformers does, in chats and transcriptions."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers

from tests.support.audio_files import Samples, audio_file, sine
from tests.support.audio_models import make_audio_model, reference_generate
from tests.support.stack import Stack, start_stack, stop_stack

pytestmark = pytest.mark.slow

ANSWER = 16
TONE, OTHER = sine(3.1), sine(1.3, 900)
AUDIO = {"type": "audio"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def heard(samples: Samples) -> dict[str, Any]:
    """A message part with the audio."""
    data = base64.b64encode(audio_file(samples, "wavf")).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


@dataclass
class Served:
    """A stack, and a folder with files that it may read."""

    stack: Stack
    folder: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.stack.url}/v1", api_key="unused", max_retries=0, timeout=60)

    def ask(self, *parts: dict[str, Any], **fields: Any) -> Any:
        messages: Any = [{"role": "user", "content": list(parts)}]
        return self.client.chat.completions.create(
            model="listener", messages=messages, temperature=0, max_tokens=ANSWER,
            extra_body={"return_token_ids": True} | fields,
        )  # fmt: skip

    def expected(self, content: list[dict[str, Any]], *audios: Samples) -> tuple[list[int], list[int]]:
        """Token ids of prompt and answer by Transformers."""
        assert self.stack.model
        messages = [{"role": "user", "content": content}]
        return reference_generate(self.stack.model, messages, audios, ANSWER, torch.float32)

    def text_of(self, token_ids: list[int]) -> str:
        assert self.stack.model
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.stack.model)
        return str(tokenizer.decode(token_ids, skip_special_tokens=True)).strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = make_audio_model(tmp_path_factory.mktemp("models"), "glmasr")
    files = tmp_path_factory.mktemp("files")
    (files / "tone.wav").write_bytes(audio_file(TONE, "wavf"))
    running = start_stack(
        model, tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32", "--served-model-name", "listener",
        "--max-model-len", "1024", "--kv-cache-memory-bytes", "64M", "--enable-prompt-tokens-details",
        "--allowed-local-media-path", str(files), "--limit-mm-per-prompt", "audio=2",
        "--override-generation-config", '{"eos_token_id": []}',
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield Served(running, files)
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def test_chats(served: Served) -> None:
    prompt, expected = served.expected([text("Listen: "), AUDIO, text("and now"), AUDIO], TONE, OTHER)
    parts = [text("Listen: "), heard(TONE), text("and now"), heard(OTHER)]
    for _ in range(2):
        answer = served.ask(*parts)
        assert answer.choices[0].model_extra["token_ids"] == expected
        assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.prompt_tokens_details.cached_tokens == (len(prompt) - 1) // 16 * 16
    _, expected = served.expected([AUDIO], TONE)
    from_file = {"type": "audio_url", "audio_url": {"url": f"file://{served.folder}/tone.wav"}}
    assert served.ask(from_file).choices[0].model_extra["token_ids"] == expected
    _, other = served.expected([AUDIO], OTHER)
    assert served.ask(heard(OTHER)).choices[0].model_extra["token_ids"] == other != expected


def test_transcriptions(served: Served) -> None:
    """The same as the chat that the model was trained to answer with a transcript."""
    _, expected = served.expected([AUDIO, text("Please transcribe this audio into text")], TONE)
    file = ("tone.wav", audio_file(TONE, "wavf"))
    create: Any = served.client.audio.transcriptions.create
    limit = {"max_completion_tokens": str(ANSWER)}
    answer = create(file=file, model="listener", extra_body=limit)
    assert answer.text == served.text_of(expected)
    assert answer.usage.model_dump() == {"type": "duration", "seconds": 4.0}
    assert create(file=file, model="listener", response_format="text", extra_body=limit) == f"{answer.text}\n"
    _, german = served.expected([AUDIO, text("Please transcribe this audio into text. The language is German.")], TONE)
    assert create(file=file, model="listener", language="de", extra_body=limit).text == served.text_of(german)
    _, english = served.expected([AUDIO, text("Translate the speech to English.")], TONE)
    url, form = f"{served.stack.url}/v1/audio/translations", {"model": "listener", **limit}
    translated = httpx.post(url, data=form, files={"file": file}, timeout=60)
    assert translated.json() == {"text": served.text_of(english)}
    form = {name: (None, value) for name, value in {"file_url": f"file://{served.folder}/tone.wav", **limit}.items()}
    url = f"{served.stack.url}/v1/audio/transcriptions"
    assert httpx.post(url, files=form, timeout=60).json()["text"] == answer.text


def test_streams(served: Served) -> None:
    form = {"model": "listener", "stream": "true", "max_completion_tokens": str(ANSWER), "stream_include_usage": "true"}
    file = {"file": ("tone.mp3", audio_file(TONE, "mp3"))}
    whole = httpx.post(
        f"{served.stack.url}/v1/audio/transcriptions", data={**form, "stream": "false"}, files=file, timeout=60
    )
    answer = httpx.post(f"{served.stack.url}/v1/audio/transcriptions", data=form, files=file, timeout=60)
    *chunks, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    read = [json.loads(chunk) for chunk in chunks]
    assert {chunk["object"] for chunk in read} == {"transcription.chunk"}
    said = "".join(chunk["choices"][0]["delta"]["content"] for chunk in read if chunk["choices"])
    assert said.strip() == whole.json()["text"]
    assert read[-1]["usage"]["completion_tokens"] == ANSWER


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"#EXTM3U\n", "not in a known format"), (b"RIFF\0\0\0\0WAVEfmt ", "cannot be decoded"), (b"", "empty"),
        (audio_file(sine(0.01), "wavf"), "too s"),
    ],
)  # fmt: skip
def test_what_is_no_audio(served: Served, file: bytes, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        served.client.audio.transcriptions.create(file=("a.wav", file), model="listener")


def test_what_is_refused_does_no_harm(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 2"):
        served.ask(heard(OTHER), heard(OTHER), heard(OTHER))
    with pytest.raises(openai.BadRequestError, match="needs timestamps"):
        served.client.audio.transcriptions.create(
            file=("tone.wav", audio_file(TONE)), model="listener", response_format="verbose_json"
        )
    assert served.ask(heard(OTHER)).usage.completion_tokens == ANSWER
