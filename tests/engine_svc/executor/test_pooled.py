"""Ranks that share the layers of a model for pooling return what one rank does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.executor.pooled import PooledRanks
from engine_svc.pooling_plan import PooledSequence, PoolingPlan
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.pooled_models import make_pooled, run, runner_of, sequence, values_of
from tests.support.run_engine import GREEDY, random_prompts
from tests.support.vision_models import make_vision_model, random_image
from tests.support.vision_models.prompts import request_of

pytestmark = pytest.mark.slow

PROMPTS = random_prompts(3, 20, 7)


@contextmanager
def ranks(folder: Path, tokens: Sequence[int] = (), **options: Any) -> Iterator[PooledRanks]:
    """Two ranks, loaded."""
    chosen = engine_options(
        **{"dtype": "float32", "device": "cpu", "tensor_parallel_size": 2, "cpu_threads": 1, "step_timeout_seconds": 60}
        | options
    )  # fmt: skip
    executor = PooledRanks(tokens)
    try:
        executor.load(ModelOptions(str(folder)), chosen)
        yield executor
    finally:
        executor.close()


def check(folder: Path, sequences: list[PooledSequence], tokens: Sequence[int] = (), **options: Any) -> None:
    """Compares the results of two ranks with those of one."""
    with ranks(folder, tokens, **options) as executor:
        found = [values_of(each) for each in executor.run(PoolingPlan(1, sequences)).outputs]
        executor.check_alive(asks=True)
    expected = run(runner_of(folder, tokens, **options), sequences)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


def test_classes_of_an_encoder(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "bert", "ForSequenceClassification")
    types = [[place % 2 for place in range(len(prompt))] for prompt in PROMPTS]
    check(folder, [sequence(each, "classify", own) for each, own in zip(PROMPTS, types, strict=True)])


def test_vectors_of_a_decoder_with_images(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, "qwen3_vl")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look."}]}]
    request = request_of(folder, messages, [random_image(60, 40, 1)], GREEDY)
    seen = [sequence(request.prompt_token_ids, task, images=list(request.images)) for task in ("embed", "token_embed")]
    check(folder, [*seen, *(sequence(each, "embed") for each in PROMPTS)], runner="pooling")
