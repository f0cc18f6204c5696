"""The last layer computes only rows that are needed, and these are bitwise equal to those computed with all rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.plan import PositionLogprobs
from engine_svc.requests.request import GenerationRequest
from engine_svc.runner.batch import SlotBuffers
from engine_svc.runner.runner import Runner
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.native import needs_native
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine
from tests.support.tiny_models import check_greedy

LENGTHS = (5, 33, 1, 21)
TOKENS = 5
LAYERS = 3
# Each kind of layer (models/decoder_layer.py) with each kind of attention and state.
FAMILIES = (
    "llama", "olmo2", "gemma2", "cohere2", "falcon-11b", "gpt2", "gpt-oss", "llama4", "deepseek-v3", "qwen3-next",
    "lfm3", "minimax", "nemotron-h", "falcon-h1", "mamba", "kimi-linear", "mixtral",
    "ministral3", "minicpm3", "afmoe", "nanochat", "gemma4-moe", "gemma4-small", "mimo", "longcat",
)  # fmt: skip


def answers(engine: Engine, prompt_logprobs: int | None = None) -> list[tuple[list[int], list[PositionLogprobs]]]:
    sampling = replace(GREEDY, max_tokens=TOKENS, logprobs=2, prompt_logprobs=prompt_logprobs)
    asked = [
        GenerationRequest(f"r{number}", prompt, sampling) for number, prompt in enumerate(random_prompts(*LENGTHS))
    ]
    return [(choice.token_ids, choice.logprobs) for (choice,) in run_requests(engine, asked)]


@needs_native
@pytest.mark.parametrize(
    ("family", "enforce_eager"),
    [*((family, False) for family in FAMILIES), ("gemma2", True), ("qwen3-next", True)],
)
def test_they_are_what_all_rows_would_be(
    monkeypatch: pytest.MonkeyPatch, model_folder: ModelFolder, family: str, enforce_eager: bool
) -> None:
    """Compares also with prompt log-probabilities, which need all rows. Chunks of 24 tokens cut the longest prompt."""
    is_latent = family in ("deepseek-v3", "kimi-linear", "longcat")
    latent = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16} if is_latent else {}
    options = {"dtype": "bfloat16", "max_num_batched_tokens": 24, "enable_prefix_caching": False}
    with running_engine(model_folder(family, **latent), enforce_eager=enforce_eager, **options) as engine:
        found = answers(engine)
        assert found == answers(engine, prompt_logprobs=0)
    monkeypatch.setattr(Runner, "_flatten", lambda self, plan: self._buffers.flatten(plan))
    with running_engine(model_folder(family, **latent), enforce_eager=True, **options) as engine:
        assert found == answers(engine)


@pytest.mark.parametrize(
    ("family", "attention_backend"), [("gemma4-small", "reference"), ("gemma4-small", "cpu"), ("gemma2", "triton")]
)
def test_by_other_backends(model_folder: ModelFolder, family: str, attention_backend: str) -> None:
    folder, prompts = model_folder(family), random_prompts(*LENGTHS)
    with running_engine(
        folder, attention_backend=attention_backend, max_num_batched_tokens=24, enforce_eager=True, cpu_kernels="torch"
    ) as engine:
        found = [each.token_ids for (each,) in run(engine, prompts, replace(GREEDY, max_tokens=TOKENS))]
    check_greedy(folder, prompts, found, TOKENS)


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 12}])
def test_no_other_row_is_computed_by_the_last_layer(
    model_folder: ModelFolder, computed: list[int], options: dict[str, int]
) -> None:
    """A chunk that samples nothing still has one row, which shows whether its sequence overflows."""
    folder = model_folder("llama", num_hidden_layers=LAYERS)
    with running_engine(folder, enforce_eager=True, max_num_seqs=4, **options) as engine:
        computed.clear()
        run(engine, random_prompts(9, 7), replace(GREEDY, max_tokens=1))
    steps = [12, 4] if options else [16]
    assert computed == [rows for tokens in steps for rows in (*[tokens] * (LAYERS - 1), 2 if tokens > 4 else 1)]


def test_prompts_of_which_logprobs_are_wanted_need_all_rows(model_folder: ModelFolder, computed: list[int]) -> None:
    folder, sampling = model_folder("llama", num_hidden_layers=LAYERS), replace(GREEDY, max_tokens=1)
    first, second = random_prompts(9, 7)
    with running_engine(folder, enforce_eager=True) as engine:
        computed.clear()
        scoring = replace(sampling, prompt_logprobs=1)
        asked = [GenerationRequest("r1", first, sampling), GenerationRequest("r2", second, scoring)]
        (_,), (scored,) = run_requests(engine, asked)
        assert len(scored.prompt_logprobs) == len(second) - 1
        assert computed == [16, 16, 1 + 7]
        computed.clear()
        run(engine, [first], sampling)  # in a slot that needed all rows before
        assert computed[-1] == 1


def test_rows_of_a_batch() -> None:
    buffers = SlotBuffers(4, 64, 16, 1, torch.device("cpu"), torch.float32)
    batch = buffers.rows(np.array([0, 2, 3]), np.array([0, 5, 7]), np.array([4, 1, 3]))
    assert batch.output_rows.tolist() == list(range(8))
    batch = dataclasses.replace(batch, output_lens=[1, 1, 2])
    assert batch.output_start.tolist() == [0, 1, 2, 4]
    assert batch.output_rows.tolist() == [3, 4, 6, 7]
    hidden = torch.arange(8.0)[:, None]
    assert batch.outputs_of(hidden).flatten().tolist() == [3.0, 4.0, 6.0, 7.0]
    assert batch.outputs_of(hidden[:4]).equal(hidden[:4])  # already only these rows
