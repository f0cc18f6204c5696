"""A whole stack serves a model that sees and hears, from what Qwen publishes for one that also speaks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import transformers
from msgspec.structs import replace

from tests.support.audio_files import Samples, audio_file, sine
from tests.support.films import film
from tests.support.omni_models import make_omni_model, omni_request, reference_answer
from tests.support.run_engine import GREEDY
from tests.support.tiny_stack import serving_tiny
from tests.support.vision_models import png_bytes, random_frames, random_image

pytestmark = pytest.mark.slow

ANSWER = 12
FAMILY = "qwen3_omni"
HEARD, SEEN = sine(2.3), random_image(40, 30, 1)
FILM = film(random_frames(30, 40, 6, 3), container="matroska", fps=2, sound=HEARD)
TRANSCRIBE = {"type": "text", "text": "Transcribe the speech."}


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def expected(
    folder: Path, parts: list[Any], images: list[Any], audios: list[Samples], videos: list[bytes] | None = None
) -> list[int]:
    """Of a conversation with audios, or with videos whose sounds these are."""
    sampling = replace(GREEDY, max_tokens=ANSWER)
    request = omni_request(folder, [{"role": "user", "content": parts}], [*images, *(videos or audios)], sampling)
    return reference_answer(folder, FAMILY, request, images, audios, ANSWER)


def test_images_and_audio(tmp_path: Path) -> None:
    folder = make_omni_model(tmp_path / "model", FAMILY)
    words = {"type": "text", "text": "Is that the sound of this?"}
    wanted = expected(folder, [{"type": "audio"}, words, {"type": "image"}], [SEEN], [HEARD])
    spoken = expected(folder, [{"type": "audio"}, TRANSCRIBE], [], [HEARD])
    shown = expected(folder, [{"type": "video"}, words, {"type": "image"}], [SEEN], [HEARD], [FILM])
    with serving_tiny(folder, "--trust-request-mm-kwargs") as client:

        def answer(*parts: Any, **fields: Any) -> Any:
            messages: Any = [{"role": "user", "content": parts}]
            found = client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_tokens=ANSWER, modalities=["text"],
                extra_body={"return_token_ids": True} | fields,
            )  # fmt: skip
            return found.choices[0].model_extra["token_ids"]  # type: ignore[index]

        wav = audio_file(HEARD, "wavf")
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(png_bytes(SEEN))}"}}
        audio = {"type": "input_audio", "input_audio": {"data": encoded(wav), "format": "wav"}}
        video = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded(FILM)}"}}
        for _ in range(2):
            assert answer(audio, words, image) == wanted
            assert answer(video, words, image, mm_processor_kwargs={"use_audio_in_video": True}) == shown
        create: Any = client.audio.transcriptions.create
        written = create(file=("a.wav", wav), model="tiny", extra_body={"max_completion_tokens": str(ANSWER)})
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert written.text == str(tokenizer.decode(spoken, skip_special_tokens=True)).strip()
