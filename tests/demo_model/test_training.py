"""A few steps of the real recipe, on a tiny model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers

from demo_model import build as recipes
from demo_model import train
from demo_model.curve import draw, read
from demo_model.train import DRAFT, Phase
from tests.support.run_engine import GREEDY, run, running_engine, tokens
from tests.support.tiny_models import check_greedy

pytestmark = pytest.mark.slow


def test_training_lowers_the_loss_and_the_engine_runs_the_result(
    tokenizer: transformers.PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_REPORT_STEPS", 10)
    monkeypatch.setattr(recipes, "train_tokenizer", {recipes.TOKENIZER_SEED: tokenizer}.__getitem__)
    recipe = dataclasses.replace(
        DRAFT, hidden_size=32, intermediate_size=64, num_layers=1, head_dim=16, tokens_per_batch=512,
        warmup_steps=5, phases=(Phase(20, late_step=14), Phase(10, late_step=0, peak=0.5)),
    )  # fmt: skip
    recipes.build("tiny", recipe, tmp_path / "tiny", torch.device("cpu"), compiled=False)
    curve = read(tmp_path / "tiny.curve.jsonl")
    assert curve[-1][1] < curve[0][1]
    assert draw({"tiny": curve}).count("<polyline") == 3
    prompts = [[5, 6, 7], [8] * 20]
    with running_engine(tmp_path / "tiny") as engine:
        found = tokens(run(engine, prompts))
    check_greedy(tmp_path / "tiny", prompts, found, GREEDY.max_tokens or 0)
