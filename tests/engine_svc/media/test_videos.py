"""Greedy float32 output for prompts with videos equals Transformers', token for token, however the work is split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PIL.Image import Image

from engine_svc.requests.request import GenerationRequest
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import GREEDY, run_requests, running_engine, tokens
from tests.support.vision_models import FAMILIES, random_frames, random_image, reference_generate
from tests.support.vision_models.prompts import request_of

ANSWER = 6
READERS = sorted(name for name, family in FAMILIES.items() if family.video_processor)
WITHOUT_PREFIX_CACHE = ("lfm3_vl", "qwen3_5", "qwen3_5_moe")  # because of their recurrent layers
VIDEO, IMAGE = {"type": "video"}, {"type": "image"}
Frames = Sequence[Image]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def user(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


# An odd number of frames is filled up. In Qwen2.5-VL's time they take fewer positions than in width or height, because
# Transformers lets the text after a video begin before the video's end otherwise.
WIDE, HIGH = random_frames(84, 60, 5, 1), random_frames(56, 84, 5, 2)
# Conversations, with their images and videos.
Case = tuple[list[dict[str, Any]], list[Image], list[Frames]]
CASES: list[Case] = [
    ([user(text("Watch this:"), VIDEO, text("What happens?"))], [], [WIDE]),
    (
        [
            user(text("First a film."), VIDEO), {"role": "assistant", "content": [text("I see.")]},
            user(IMAGE, text("Then a picture, and another film."), VIDEO),
        ],
        [random_image(45, 45, 3)], [HIGH, WIDE],
    ),
    ([user(text("Two frames only: "), VIDEO)], [], [HIGH[:2]]),
]  # fmt: skip


def requests_of(folder: Path, cases: Sequence[Case] = CASES) -> list[GenerationRequest]:
    sampling = replace(GREEDY, max_tokens=ANSWER)
    return [request_of(folder, messages, images, sampling, videos=videos) for messages, images, videos in cases]


@pytest.mark.parametrize("family", ["gemma4", "glm4v", "qwen2_5_vl", "qwen3_vl"])
def test_many_patches_are_encoded_in_parts(
    family: str, vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole frames; here a frame has more patches than are encoded at once, or two have, or three of Gemma 4."""
    folder, (messages, _, videos) = vision_folder(family), CASES[0]
    _, answer = reference_generate(folder, messages, [], ANSWER, videos=videos)
    request = request_of(folder, messages, [], replace(GREEDY, max_tokens=ANSWER), videos=videos)
    for most in (20, 70, 200, 600):
        monkeypatch.setattr("engine_svc.media.encoder._MOST_PATCHES", most)
        with running_engine(folder) as engine:
            assert tokens(run_requests(engine, [request])) == [answer]


@pytest.mark.parametrize("family", READERS)
def test_families(family: str, vision_folder: VisionFolder) -> None:
    """Together; and in small chunks that split videos, with and without what the prefix cache has of them."""
    folder = vision_folder(family)
    # Transformers cannot tell the frames of GLM's videos from images beside them.
    cases = [case for case in CASES if not case[1]] if family.startswith("glm") else CASES
    expected = [
        reference_generate(folder, messages, images, ANSWER, videos=videos) for messages, images, videos in cases
    ]
    requests = requests_of(folder, cases)
    assert [request.prompt_token_ids for request in requests] == [prompt for prompt, _ in expected]
    answers = [answer for _, answer in expected]
    # Their frames, of 70 tokens, are never split.
    chunk = 73 if family in ("gemma4_large", "gemma4_unified") else 37
    with running_engine(folder, 1024) as engine:
        assert tokens(run_requests(engine, requests)) == answers
    with running_engine(folder, 1024, max_num_batched_tokens=chunk, max_num_seqs=4, block_size=4) as engine:
        assert tokens(run_requests(engine, requests)) == answers
        again = run_requests(engine, requests)
        assert tokens(again) == answers
        if family not in WITHOUT_PREFIX_CACHE:
            assert all(choices[0].usage and choices[0].usage.cached_prompt_tokens for choices in again)
