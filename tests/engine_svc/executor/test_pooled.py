"""Ranks that share the layers of a model for pooling return what one rank does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.executor.pooled import PooledRanks
from engine_svc.pooling_plan import PooledSequence, PoolingPlan
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.lora import write_adapter
from tests.support.pooled_models import make_pooled, place_adapters, run, runner_of, sequence, values_of
from tests.support.run_engine import GREEDY, random_prompts
from tests.support.vision_models import make_vision_model, random_image
from tests.support.vision_models.prompts import request_of

pytestmark = pytest.mark.slow

PROMPTS = random_prompts(3, 20, 7)


@contextmanager
def ranks(folder: Path, **options: Any) -> Iterator[PooledRanks]:
    """Two ranks, loaded."""
    chosen = engine_options(
        **{"dtype": "float32", "device": "cpu", "tensor_parallel_size": 2, "cpu_threads": 1, "step_timeout_seconds": 60}
        | options
    )  # fmt: skip
    executor = PooledRanks(())
    try:
        executor.load(ModelOptions(str(folder)), chosen)
        yield executor
    finally:
        executor.close()


def check(folder: Path, sequences: list[PooledSequence], adapters: Mapping[int, Path] = {}, **options: Any) -> None:
    """Compares the results of two ranks with those of one.

    Args:
        adapters: in slots.
    """
    with ranks(folder, **options) as executor:
        if adapters:
            place_adapters(executor, adapters)
        found = [values_of(each) for each in executor.run(PoolingPlan(1, sequences)).outputs]
        executor.check_alive(asks=True)
    runner = runner_of(folder, **options)
    if adapters:
        place_adapters(runner, adapters)
    expected = run(runner, sequences)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


def test_classes_of_an_encoder_with_adapters(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path / "base", "bert", "ForSequenceClassification")
    types = [[place % 2 for place in range(len(prompt))] for prompt in PROMPTS]
    given = [
        sequence(each, "classify", own, adapter_slot=slot)
        for slot, (each, own) in enumerate(zip(PROMPTS, types, strict=True))
    ]
    layers = {f"bert.encoder.layer.{layer}" for layer in range(3)}
    modules = {f"{layer}.attention.self.query": (64, 64) for layer in layers}
    modules |= {f"{layer}.output.dense": (64, 96) for layer in layers}
    own = {"classifier.weight": torch.randn(3, 64), "classifier.bias": torch.randn(3)}
    adapters = [write_adapter(tmp_path / "a", modules), write_adapter(tmp_path / "b", modules, seed=1, whole=own)]
    folders = {slot: each.folder for slot, each in enumerate(adapters, 1)}
    check(folder, given, folders, enable_lora=True, max_loras=2)


def test_vectors_of_a_decoder_with_images(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, "qwen3_vl")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look."}]}]
    request = request_of(folder, messages, [random_image(60, 40, 1)], GREEDY)
    seen = [sequence(request.prompt_token_ids, task, images=list(request.images)) for task in ("embed", "token_embed")]
    check(folder, [*seen, *(sequence(each, "embed") for each in PROMPTS)], runner="pooling")
