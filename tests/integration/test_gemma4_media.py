"""A whole stack that serves Gemma 4 answers as Transformers does: images, videos and audio."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers

from tests.support.audio_files import audio_file, sine
from tests.support.tiny_stack import serving_tiny
from tests.support.vision_models import (
    make_vision_model,
    png_bytes,
    random_frames,
    random_image,
    reference_generate,
)

pytestmark = pytest.mark.slow

ANSWER = 12
SEEN, FILM, HEARD = random_image(40, 30, 1), random_frames(40, 60, 3, 2), sine(1.7)
WORDS = "Is that the sound of this?"
KINDS = ("image", "video", "audio")


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def part(kind: str) -> dict[str, Any]:
    """What a request has for one of the media."""
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": encoded(audio_file(HEARD, "wavf")), "format": "wav"}}
    frames = ",".join(encoded(png_bytes(each)) for each in (FILM if kind == "video" else [SEEN]))
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{kind}/png;base64,{frames}"}}


def test_media(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path / "model", "gemma4")
    told: list[Any] = [{"type": "text", "text": WORDS}, *({"type": kind} for kind in KINDS)]
    prompt, wanted = reference_generate(
        folder, [{"role": "user", "content": told}], [SEEN], ANSWER, torch.float32, videos=[FILM], audios=[HEARD]
    )
    with serving_tiny(folder) as client:
        # The first one of each kind starts a process: on a busy machine, three at once take longer than a request may.
        for kind in KINDS:
            alone: Any = [{"role": "user", "content": [part(kind)]}]
            client.chat.completions.create(model="tiny", messages=alone, max_tokens=1)
        messages: Any = [{"role": "user", "content": [told[0], *map(part, KINDS)]}]
        for _ in range(2):
            answer: Any = client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_tokens=ANSWER, extra_body={"return_token_ids": True}
            )
            assert answer.choices[0].model_extra["token_ids"] == wanted
            assert answer.usage.prompt_tokens == len(prompt)
        assert written_down(client) == transcript(folder)


def written_down(client: openai.OpenAI) -> str:
    create: Any = client.audio.transcriptions.create
    file = ("a.wav", audio_file(HEARD, "wavf"))
    text: str = create(file=file, model="tiny", extra_body={"max_completion_tokens": str(ANSWER)}).text
    return text


def transcript(folder: Path) -> str:
    """By Transformers."""
    parts = [{"type": "audio"}, {"type": "text", "text": "Transcribe the speech."}]
    _, said = reference_generate(
        folder, [{"role": "user", "content": parts}], [], ANSWER, torch.float32, audios=[HEARD]
    )
    return str(transformers.AutoTokenizer.from_pretrained(folder).decode(said, skip_special_tokens=True)).strip()
