"""A whole stack that serves a model which reads videos answers as Transformers does, wherever the videos come from."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from PIL import Image

from tests.support.films import film, frames_of
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.vision_models import (
    make_vision_model,
    png_bytes,
    random_frames,
    random_image,
    reference_generate,
)
from tests.support.vision_models.reference import Places

pytestmark = pytest.mark.slow

ANSWER, FRAMES = 16, 6
FILM = film(random_frames(96, 64, 20, 1))
PICTURE = random_image(45, 45, 3)

Tokens = tuple[list[int], list[int]]


def data_url(kind: str, *files: bytes) -> str:
    return f"data:{kind};base64,{','.join(base64.b64encode(file).decode() for file in files)}"


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


@dataclass
class Served:
    """A stack, and a folder with files that it may read."""

    stack: Stack
    folder: Path

    def ask(self, *parts: dict[str, Any], **fields: Any) -> Any:
        client = openai.OpenAI(base_url=f"{self.stack.url}/v1", api_key="unused", max_retries=0, timeout=60)
        messages: Any = [{"role": "user", "content": [*parts, {"type": "text", "text": "What happens?"}]}]
        return client.chat.completions.create(
            model="seer", messages=messages, temperature=0, max_tokens=ANSWER,
            extra_body={"return_token_ids": True} | fields,
        )  # fmt: skip

    def check(self, answer: Any, expected: Tokens) -> None:
        prompt, tokens = expected
        assert answer.choices[0].model_extra["token_ids"] == tokens
        assert answer.usage.prompt_tokens == len(prompt)

    def expected(self, frames: Sequence[Image.Image], places: Places | None, *images: Image.Image) -> Tokens:
        """Token ids of prompt and answer by Transformers, with images before the video."""
        assert self.stack.model
        parts = [*({"type": "image"} for _ in images), {"type": "video"}, {"type": "text", "text": "What happens?"}]
        messages = [{"role": "user", "content": parts}]
        return reference_generate(
            self.stack.model, messages, images, ANSWER, torch.float32, videos=[frames], places=places and [places]
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = make_vision_model(tmp_path_factory.mktemp("models"), "qwen3_vl")
    files = tmp_path_factory.mktemp("files")
    (files / "film.mp4").write_bytes(FILM)
    running = start_stack(
        model, tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32", "--served-model-name", "seer",
        "--max-model-len", "1024", "--kv-cache-memory-bytes", "64M", "--enable-prompt-tokens-details",
        "--allowed-local-media-path", str(files), "--limit-mm-per-prompt", "video=1", "--trust-request-mm-kwargs",
        "--media-io-kwargs", f'{{"video": {{"num_frames": {FRAMES}}}}}',
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield Served(running, files)
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def taken(count: int) -> tuple[list[Image.Image], Places]:
    """Frames of the film, spread evenly, and their places."""
    frames, places = frames_of(FILM), np.linspace(0, 19, count, dtype=int).tolist()
    return [frames[place] for place in places], Places(places, 20, 10.0)


def test_answers_are_those_of_transformers(served: Served) -> None:
    expected = served.expected(*taken(FRAMES))
    for url in (data_url("video/mp4", FILM), f"file://{served.folder}/film.mp4"):
        served.check(served.ask(video(url)), expected)
    again = served.ask(video(f"file://{served.folder}/film.mp4"))
    assert again.usage.prompt_tokens_details.cached_tokens == (again.usage.prompt_tokens - 1) // 16 * 16


def test_requests_choose_their_frames(served: Served) -> None:
    expected = served.expected(*taken(4))
    for reading in ({"num_frames": 4}, {"fps": 2}):
        answer = served.ask(video(data_url("video/mp4", FILM)), media_io_kwargs={"video": reading})
        served.check(answer, expected)


def test_lists_of_frames_beside_images(served: Served) -> None:
    files = [io.BytesIO() for _ in range(3)]
    for file, frame in zip(files, random_frames(56, 84, 3, 2), strict=True):
        frame.save(file, "JPEG", quality=95)
    frames = [Image.open(file).convert("RGB") for file in files]
    expected = served.expected(frames, None, PICTURE)
    picture = {"type": "image_url", "image_url": {"url": data_url("image/png", png_bytes(PICTURE))}}
    listed = video(data_url("video/jpeg", *(file.getvalue() for file in files)))
    served.check(served.ask(picture, listed), expected)


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        ((b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",), "video/mp4", "not in a known format"),
        ((FILM[: len(FILM) // 2],), "video/mp4", "cannot be decoded"),
        ((png_bytes(PICTURE), b"no image"), "video/png", "cannot be decoded"),
    ],
)
def test_what_is_no_video(served: Served, files: tuple[bytes, ...], kind: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        served.ask(video(data_url(kind, *files)))


def test_what_is_refused_does_no_harm(served: Served) -> None:
    one = video(f"file://{served.folder}/film.mp4")
    with pytest.raises(openai.BadRequestError, match="has 2 videos; at most 1"):
        served.ask(one, one)
    with pytest.raises(openai.BadRequestError, match="'patch_size' is no setting for videos"):
        served.ask(one, mm_processor_kwargs={"patch_size": 3})
    assert served.ask(one).usage.completion_tokens == ANSWER
