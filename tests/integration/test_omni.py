"""A whole stack serves a model that sees and hears, from what Qwen publishes for one that also speaks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import transformers
from msgspec.structs import replace

from tests.support.audio_files import Samples, audio_file, sine
from tests.support.omni_models import make_omni_model, omni_request, reference_answer
from tests.support.run_engine import GREEDY
from tests.support.tiny_stack import serving_tiny
from tests.support.vision_models import png_bytes, random_image

pytestmark = pytest.mark.slow

ANSWER = 12
FAMILY = "qwen3_omni"
HEARD, SEEN = sine(2.3), random_image(40, 30, 1)
TRANSCRIBE = {"type": "text", "text": "Transcribe the speech."}


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def expected(folder: Path, parts: list[Any], images: list[Any], audios: list[Samples]) -> list[int]:
    sampling = replace(GREEDY, max_tokens=ANSWER)
    request = omni_request(folder, [{"role": "user", "content": parts}], [*images, *audios], sampling)
    return reference_answer(folder, FAMILY, request, images, audios, ANSWER)


def test_images_and_audio(tmp_path: Path) -> None:
    folder = make_omni_model(tmp_path / "model", FAMILY)
    words = {"type": "text", "text": "Is that the sound of this?"}
    wanted = expected(folder, [{"type": "audio"}, words, {"type": "image"}], [SEEN], [HEARD])
    spoken = expected(folder, [{"type": "audio"}, TRANSCRIBE], [], [HEARD])
    with serving_tiny(folder) as client:
        wav = audio_file(HEARD, "wavf")
        url = f"data:image/png;base64,{encoded(png_bytes(SEEN))}"
        messages: Any = [{
            "role": "user", "content": [
                {"type": "input_audio", "input_audio": {"data": encoded(wav), "format": "wav"}}, words,
                {"type": "image_url", "image_url": {"url": url}},
            ],
        }]  # fmt: skip
        for _ in range(2):
            answer = client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_tokens=ANSWER, extra_body={"return_token_ids": True}
            )
            assert answer.choices[0].model_extra["token_ids"] == wanted  # type: ignore[index]
        create: Any = client.audio.transcriptions.create
        written = create(file=("a.wav", wav), model="tiny", extra_body={"max_completion_tokens": str(ANSWER)})
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert written.text == str(tokenizer.decode(spoken, skip_special_tokens=True)).strip()
