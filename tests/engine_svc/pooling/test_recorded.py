"""Steps replayed from one recording give bitwise what the model's code gives, at any size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine_svc.pooling.inputs import FlatBatch
from engine_svc.pooling.runner import PoolingRunner
from engine_svc.runner.native_calls import Arena
from tests.support.native import needs_native
from tests.support.pooled_models import make_pooled, pooling_of, runner_of, sequence
from tests.support.run_engine import random_prompts

PROMPTS = random_prompts(1, 2, 5, 16, 17, 40, 90)
BUDGET = 128


def passes(runner: PoolingRunner, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Returns hidden states from the recorded calls (None if the batch cannot use them) and from the model's code."""
    kinds = max(1, pooling_of(runner).type_vocab_size)
    types = [[place % kinds for place in range(len(each))] for each in prompts]
    sequences = [sequence(each, "embed", own) for each, own in zip(prompts, types, strict=True)]
    batch = FlatBatch.of(sequences, runner.spec().block_size)
    kept = runner._recorded[False]
    assert kept is not None
    with torch.inference_mode():
        recorded = kept.run(batch)
        found = None if recorded is None else recorded.clone()
        return found, runner._pass(batch.inputs(torch.device("cpu")))


@needs_native
@pytest.mark.parametrize(
    ("family", "options"),
    [("bert", {}), ("roberta", {"dtype": "bfloat16"}), ("modernbert", {}), ("gte", {}), ("nomic-bert", {}),
     ("distilbert", {"quantization": "int8"}), ("qwen3", {}), ("gemma2", {})],
)  # fmt: skip
def test_calls_give_what_the_model_gives(tmp_path: Path, family: str, options: dict[str, str]) -> None:
    folder = make_pooled(tmp_path, family, "Model")
    runner = runner_of(folder, max_num_batched_tokens=BUDGET, max_num_seqs=5, **options)
    for chosen in ([3], [0], [6, 0, 3], [1, 2, 4, 5, 3], [6]):
        found, expected = passes(runner, [PROMPTS[index] for index in chosen])
        assert found is not None
        assert found.equal(expected)


@needs_native
def test_a_step_that_is_too_large_goes_by_the_model(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "bert", "Model")
    runner = runner_of(folder, max_num_batched_tokens=32, max_num_seqs=2)
    assert passes(runner, [PROMPTS[5]])[0] is None
    assert passes(runner, PROMPTS[:3])[0] is None
    assert passes(runner, PROMPTS[:2])[0] is not None


def test_tensors_lie_where_they_would_with_more_rows() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    few, most = Arena(memory, {2}, 16), Arena(memory, {16}, 16)
    places = [
        [each.data_ptr() for each in [arena.new(torch.empty(rows, 5)), arena.new(torch.empty(rows, 3, 4))]]
        for arena, rows in ((few, 2), (most, 16))
    ]
    assert places[0] == places[1]
    other, behind = few.new(torch.empty(3, 5)), few.new(torch.empty(2))  # not a step's rows: no more room
    assert behind.data_ptr() == other.data_ptr() + 64
