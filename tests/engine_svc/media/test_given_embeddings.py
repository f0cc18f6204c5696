"""Images that come as embeddings give the answers that Transformers gives to the images."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine_svc.media.unfit import UnfitImage
from engine_svc.requests.request import GenerationRequest
from quire.images import EMBEDS, GRID
from quire.media import MediaKind
from tests.engine_svc.media.conftest import VisionFolder
from tests.engine_svc.media.test_features import encoder_of
from tests.support.media_requests import media_request
from tests.support.run_engine import run_requests, running_engine, tokens
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import GREEDY_DOZEN, answer, ask, with_inputs
from tests.support.vision_models.embeddings import embeddings_of, saved
from tokenizer_svc.media import Medium

WIDE = random_image(60, 40, 1)
QUESTION = ("Look: ", WIDE, "What is it?")
MESSAGES = [{"role": "user", "content": [
    {"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "What is it?"},
]}]  # fmt: skip


def given(folder: Path, tensors: dict[str, torch.Tensor]) -> GenerationRequest:
    medium = Medium(MediaKind.IMAGE, tuple(map(saved, tensors.values())), tuple(tensors))
    return media_request(folder, MESSAGES, [medium], GREEDY_DOZEN)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl"])  # with one position, three, and deep features
def test_answers_are_those_to_the_image(family: str, vision_folder: VisionFolder) -> None:
    folder = vision_folder(family)
    tensors = embeddings_of(folder, WIDE)
    first, again = given(folder, tensors), given(folder, tensors)
    other = given(folder, tensors | {EMBEDS: -tensors[EMBEDS]})
    assert {each.name for each in first.images[0].inputs} == tensors.keys()
    assert first.prompt_token_ids == ask(folder, *QUESTION).prompt_token_ids
    with running_engine(folder, max_num_batched_tokens=7, max_num_seqs=4) as engine:
        found = tokens(run_requests(engine, [first, other]))
        found += tokens(run_requests(engine, [dataclasses.replace(again, request_id="again")]))
    expected = answer(folder, *QUESTION)
    assert (found[0], found[2]) == (expected, expected)
    assert found[1] != expected  # which shows that the embeddings count, also in the prefix cache


def test_what_does_not_fit(vision_folder: VisionFolder) -> None:
    folder = vision_folder("qwen2_5_vl")
    encoder, (embeds, grid) = encoder_of(folder), embeddings_of(folder, WIDE).values()
    rows, size = embeds.shape
    good = given(folder, {EMBEDS: embeds, GRID: grid})

    def refusal(values: torch.Tensor) -> str:
        with pytest.raises(UnfitImage) as caught:
            encoder.encode(with_inputs(good, **{EMBEDS: values.numpy()}).images[0])
        return str(caught.value)

    assert f"the model takes float32 [rows, {size}]" in refusal(torch.zeros(rows, size + 1))
    assert "float64" in refusal(torch.zeros(rows, size, dtype=torch.float64))
    assert "not finite in torch.float32" in refusal(embeds / 0)
    for tensors, words in (
        ({EMBEDS: embeds}, "it needs image_grid_thw"),
        ({EMBEDS: embeds[1:], GRID: grid}, f"does not fit {rows - 1} tokens"),
        ({EMBEDS: embeds, GRID: torch.tensor([1, 3, 2])}, "positive multiples of 2"),
    ):
        with pytest.raises(UnfitImage, match=words):
            encoder.encode(given(folder, tensors).images[0])
    granite = vision_folder("granite4_vision")
    with pytest.raises(UnfitImage, match="only images"):
        encoder_of(granite).encode(
            with_inputs(ask(granite, *QUESTION), **{EMBEDS: torch.zeros(1, 8).numpy()}).images[0]
        )
