"""What is pooled of conversations with images equals what Transformers computes of them, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.pooling_plan import PoolingPlan
from quire.errors import StartupError
from tests.support.pooled_models import change_config, run, runner_of, sequence
from tests.support.run_engine import GREEDY
from tests.support.vision_models import make_vision_model, random_image
from tests.support.vision_models.prompts import request_of
from tests.support.vision_models.reference import reference_hidden

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look at this:"}, {"type": "image"}]},
]
TEXT: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Just text."}]}]
CASES = [
    (MESSAGES, [random_image(60, 40, 1), random_image(30, 70, 2)]),
    (TEXT, []),
    (MESSAGES, [random_image(45, 45, 3)] * 2),
]


def sequences_of(folder: Path, task: str, **changes: Any) -> list[Any]:
    requests = [request_of(folder, messages, images, GREEDY) for messages, images in CASES]
    return [
        sequence(each.prompt_token_ids, task, images=list(each.images), **changes) for each in requests
    ]  # fmt: skip


@pytest.mark.parametrize("family", ["gemma3", "llava", "qwen2_5_vl", "qwen3_vl"])
def test_embeddings(family: str, tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, family)
    runner = runner_of(folder, runner="pooling")
    assert runner.spec().accepts_images
    expected = [reference_hidden(folder, messages, images)[0] for messages, images in CASES]
    for found, own in zip(run(runner, sequences_of(folder, "token_embed")), expected, strict=True):
        torch.testing.assert_close(found, own, atol=1e-4, rtol=1e-3)
    for found, own in zip(run(runner, sequences_of(folder, "embed")), expected, strict=True):
        torch.testing.assert_close(found, own[-1], atol=1e-4, rtol=1e-3)


def test_scores_from_the_logits_of_two_tokens(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, "qwen3_vl")
    no, yes = 5, 9
    expected = [reference_hidden(folder, messages, images)[1][-1] for messages, images in CASES]
    changes = {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True}
    change_config(folder, architectures=["Qwen3VLForSequenceClassification"], **changes)
    found = run(runner_of(folder, (no, yes)), sequences_of(folder, "classify", use_activation=True))
    for own, logits in zip(found, expected, strict=True):
        torch.testing.assert_close(own, (logits[yes] - logits[no]).sigmoid()[None], atol=1e-4, rtol=1e-3)


def test_an_image_that_does_not_fit_fails_its_own_sequence(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, "qwen2_5_vl")
    runner = runner_of(folder, runner="pooling")
    seen, text, other = sequences_of(folder, "embed")
    short = sequence(
        other.token_ids, "embed", images=[*other.images[:1], other.images[1].at(other.images[1].offset, 1)]
    )
    expected = runner.run(PoolingPlan(1, [seen, text])).outputs
    first, broken, second = runner.run(PoolingPlan(2, [seen, short, text])).outputs
    assert isinstance(broken, str) and "does not fit" in broken
    assert [first, second] == expected
    assert runner.run(PoolingPlan(4, [seen, text, seen])).encoded_media == len(seen.images)  # each only once
    assert runner.run(PoolingPlan(3, [short])).outputs == [broken]  # which is no failure of the step


def test_models_that_read_no_images_pool_text(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, "qwen2_5_vl")
    runner = runner_of(folder, runner="pooling", limit_mm_per_prompt="image=0,video=0")
    assert not runner.spec().accepts_images
    (found,) = run(runner, sequences_of(folder, "embed")[1:2])
    torch.testing.assert_close(found, reference_hidden(folder, TEXT, [])[0][-1], atol=1e-4, rtol=1e-3)


def test_text_models_with_recurrent_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="recurrent layers"):
        runner_of(make_vision_model(tmp_path, "qwen3_5"), runner="pooling")
