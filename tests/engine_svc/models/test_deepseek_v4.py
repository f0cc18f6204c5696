"""DeepSeek V4: log-probabilities are those of Transformers' model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.deepseek_v4 import make_deepseek_v4
from tests.support.exact_answers import check_answers_of
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.staged_executor import StagedExecutor
from tests.support.tensor_executor import TensorExecutor

# Shorter than a window and any entry, with entries that are not chosen among yet, and with ones that are.
PROMPTS = random_prompts(1, 3, 17, 90)
SAMPLING = replace(GREEDY, max_tokens=40, logprobs=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("v4")
    return folder, make_deepseek_v4(folder)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"cpu_kernels": "torch"}, {"executor": TensorExecutor(), "tensor_parallel_size": 2},
        {"executor": StagedExecutor(), "pipeline_parallel_size": 2},
    ],
    ids=["native", "torch", "ranks", "stages"],
)  # fmt: skip
def test_log_probabilities(made: tuple[Path, Any], options: dict[str, Any]) -> None:
    folder, model = made
    with running_engine(folder, max_num_batched_tokens=33, cpu_threads=1, **options) as engine:
        found = [run(engine, PROMPTS, SAMPLING) for _ in range(2)]
        assert engine.load().counters.prefix_cache_hits > 0
    for each in found:
        check_answers_of(model, PROMPTS, each, 40)
