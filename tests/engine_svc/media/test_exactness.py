"""Greedy float32 output for prompts with images equals Transformers', token for token, however the work is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PIL.Image import Image

from engine_svc.requests.request import GenerationRequest
from tests.support.run_engine import GREEDY, run_requests, running_engine, tokens
from tests.support.vision_models import FAMILIES, make_vision_model, random_image, reference_generate
from tests.support.vision_models.prompts import request_of

ANSWER = 6
# Text, an image, text; then two more images with nothing between them.
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Look at this:"}, {"type": "image"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I see a picture."}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "And these two?"}]},
]
TEXT = [{"role": "user", "content": [{"type": "text", "text": "Just text, and more than a block of it."}]}]
IMAGES = [random_image(60, 40, 1), random_image(30, 70, 2), random_image(45, 45, 3)]
# Tokens of a step that splits prompts; those of some images attend in both directions, and are never split, and some
# have many.
CHUNKS = {"deepseek_ocr2": 190, "gemma3": 19, "gemma4_large": 73, "gemma4_unified": 73}
# Because of their recurrent layers.
WITHOUT_PREFIX_CACHE = ("lfm2_vl", "lfm2_vl_moe", "lfm3_vl", "minicpm_ocr", "minicpmv4_6", "qwen3_5", "qwen3_5_moe")


CASES: list[tuple[list[dict[str, Any]], list[Image]]] = [
    (MESSAGES, IMAGES), (MESSAGES[:1], IMAGES[1:2]), (TEXT, []),
]  # fmt: skip


def requests_of(folder: Path) -> list[GenerationRequest]:
    sampling = replace(GREEDY, max_tokens=ANSWER)
    return [request_of(folder, messages, images, sampling) for messages, images in CASES]


def references(folder: Path) -> list[tuple[list[int], list[int]]]:
    return [reference_generate(folder, messages, images, ANSWER) for messages, images in CASES]


def test_an_image_and_its_crops(tmp_path: Path) -> None:
    """Gemma 3's pan and scan: the crops of a wide image follow it, each an image of its own, with text between them."""
    folder, images = make_vision_model(tmp_path, "gemma3"), [random_image(120, 40, 1)]
    settings = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3}
    request = request_of(folder, MESSAGES[:1], images, replace(GREEDY, max_tokens=ANSWER), settings)
    prompt, answer = reference_generate(folder, MESSAGES[:1], images, ANSWER, settings=settings)
    assert request.prompt_token_ids == prompt
    assert request.images[0].num_tokens > 4 * 16
    for most in (request.images[0].num_tokens, CHUNKS["gemma3"]):  # of a step, which need not compute all crops
        with running_engine(folder, max_num_batched_tokens=most, max_num_seqs=2) as engine:
            assert tokens(run_requests(engine, [request])) == [answer]
            assert tokens(run_requests(engine, [request])) == [answer]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families(family: str, tmp_path: Path) -> None:
    """Together; and in small chunks that split images, with and without what the prefix cache has of them."""
    folder = make_vision_model(tmp_path, family)
    requests, expected = requests_of(folder), references(folder)
    assert [request.prompt_token_ids for request in requests] == [prompt for prompt, _ in expected]
    answers = [answer for _, answer in expected]
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, requests)) == answers
    chunks = {"max_num_batched_tokens": CHUNKS.get(family, 13), "max_num_seqs": 4, "block_size": 4}
    with running_engine(folder, num_blocks=1024, **chunks) as engine:  # enough to keep all prefixes
        assert tokens(run_requests(engine, requests)) == answers
        again = run_requests(engine, requests)
        assert tokens(again) == answers
        if family not in WITHOUT_PREFIX_CACHE:
            assert all(choices[0].usage and choices[0].usage.cached_prompt_tokens for choices in again)
