"""Whole stacks serve models that see or hear from Mistral's own files alone, without further flags."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from quire.media import MediaKind
from quire.tokenizer.tekken import read_tekken
from tests.support.audio_files import audio_file, sine
from tests.support.mistral_media import as_mistrals, make_mistral_model, mistral_request, reference_answer
from tests.support.run_engine import GREEDY
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.vision_models import png_bytes, random_image

pytestmark = pytest.mark.slow

ANSWER = 12
RECORDING = audio_file(sine(3.1), "wavf")
PICTURE = png_bytes(random_image(50, 40, 1))


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@contextmanager
def serving(folder: Path) -> Iterator[openai.OpenAI]:
    running: Stack = start_stack(
        folder, folder / "log", "--dtype", "float32", "--served-model-name", "served", "--max-model-len", "512",
        "--kv-cache-memory-bytes", "64M", "--override-generation-config", '{"eos_token_id": []}',
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0, timeout=60)
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def expected(folder: Path, family: str, parts: list[Any], file: bytes, **variables: Any) -> list[int]:
    kind = MediaKind.IMAGE if family == "mistral3" else MediaKind.AUDIO
    sampling = replace(GREEDY, max_tokens=ANSWER)
    request = mistral_request(folder, [{"role": "user", "content": parts}], [file], sampling, kind, **variables)
    return reference_answer(folder, family, request, ANSWER)


def asked(client: openai.OpenAI, *parts: Any) -> Any:
    messages: Any = [{"role": "user", "content": list(parts)}]
    answer = client.chat.completions.create(
        model="served", messages=messages, temperature=0, max_tokens=ANSWER, extra_body={"return_token_ids": True}
    )
    return answer.choices[0].model_extra["token_ids"]  # type: ignore[index]


def test_images(tmp_path: Path) -> None:
    original = make_mistral_model(tmp_path / "original", "mistral3")
    wanted = expected(original, "mistral3", [text("What is"), {"type": "image"}, text("this [IMG]?")], PICTURE)
    url = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    image = {"type": "image_url", "image_url": {"url": url}}
    with serving(as_mistrals(original, tmp_path / "mistral", "mistral3")) as client:
        for _ in range(2):
            assert asked(client, text("What is"), image, text("this [IMG]?")) == wanted
        with pytest.raises(openai.BadRequestError, match="this model reads text and images only"):
            asked(client, {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}})


def test_audio(tmp_path: Path) -> None:
    original = make_mistral_model(tmp_path / "original", "voxtral")
    wanted = expected(original, "voxtral", [{"type": "audio"}, text("What is it?")], RECORDING)
    tokenizer = read_tekken(original).tokenizer
    spoken = {
        language: tokenizer.decode(
            expected(original, "voxtral", [{"type": "audio"}], RECORDING, transcription=language)
        )
        for language in ("", "de")
    }
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(RECORDING).decode(), "format": "wav"}}
    with serving(as_mistrals(original, tmp_path / "mistral", "voxtral")) as client:
        assert asked(client, part, text("What is it?")) == wanted
        create: Any = client.audio.transcriptions.create
        for language, words in spoken.items():
            form = {"language": language} if language else {}
            answer = create(
                file=("a.wav", RECORDING), model="served", extra_body={"max_completion_tokens": str(ANSWER)}, **form
            )
            assert answer.text == words.strip()
        assert spoken[""] != spoken["de"]
