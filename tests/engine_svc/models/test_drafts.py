"""Draft models change nothing in the output; if the draft is the target itself, all its guesses are right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.requests.request import GenerationRequest
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.native import needs_native
from tests.support.rank_drafter import RankDrafter
from tests.support.run_engine import random_prompts, run, run_requests, running_engine, tokens

GREEDY = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=0.8, top_k=20, seed=7)
RECORDER = "engine_svc.runner.native_calls"
PROMPTS = random_prompts(5, 33, 60, 18)


@contextmanager
def drafting(target: Path, draft: Path, most: int = 3, **options: Any) -> Iterator[tuple[Engine, RankDrafter]]:
    config = {"method": "draft_model", "model": str(draft)}
    drafter = RankDrafter(most)
    with running_engine(target, drafter=drafter, speculative_config=config, **options) as engine:
        yield engine, drafter
    assert not drafter.failures


def plain(target: Path, sampling: SamplingParameters, **options: Any) -> list[list[int]]:
    with running_engine(target, **options) as engine:
        return tokens(run(engine, PROMPTS, sampling))


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("target", ["llama", "gemma3", "qwen3-next"])
def test_another_model_as_draft(model_folder: ModelFolder, target: str, sampling: SamplingParameters) -> None:
    folder = model_folder(target)
    expected = plain(folder, sampling)
    with drafting(folder, model_folder("qwen3")) as (engine, drafter):
        assert tokens(run(engine, PROMPTS, sampling)) == expected
    assert drafter.drafts["all"] > 200


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_target_as_draft_is_always_right(model_folder: ModelFolder, sampling: SamplingParameters) -> None:
    """Holds with chunked prompts, prefix cache hits, several sequences per prompt, and pauses in drafting."""
    folder = model_folder("llama")
    expected = plain(folder, sampling)
    with drafting(folder, folder, max_num_batched_tokens=24) as (engine, drafter):
        assert tokens(run(engine, PROMPTS, sampling)) == expected
        found = run(engine, [prompt + PROMPTS[0] for prompt in PROMPTS], replace(sampling, n=2))
        drafter.pauses = True
        assert tokens(run(engine, PROMPTS[::-1], sampling)) == expected[::-1]
        again = run(engine, [prompt + PROMPTS[0] for prompt in PROMPTS], replace(sampling, n=2))
        drafter.pauses = False
        assert tokens(run(engine, PROMPTS, sampling)) == expected
        assert [[each.token_ids for each in choices] for choices in found] == [
            [each.token_ids for each in choices] for choices in again
        ]
    assert drafter.drafts["all"] > 200
    assert drafter.drafts["right"] == drafter.drafts["all"]


@pytest.mark.parametrize("host_blocks", [0, 30])
def test_preempted_and_swapped_sequences(model_folder: ModelFolder, host_blocks: int) -> None:
    folder = model_folder("llama")
    requests = [GenerationRequest("r", prompt, replace(SEEDED, max_tokens=50)) for prompt in PROMPTS]
    with running_engine(folder) as engine:
        expected = tokens(run_requests(engine, requests))
    swap = {"swap_space": 0.01} if host_blocks else {}
    with drafting(folder, folder, num_blocks=13, num_host_blocks=host_blocks, **swap) as (engine, drafter):
        assert tokens(run_requests(engine, requests)) == expected
        counters = engine.load().counters
        assert counters.preemptions > 0
        assert bool(counters.external_cache_hits) == bool(host_blocks)
    assert drafter.drafts["all"] > 60
    assert drafter.drafts["right"] == drafter.drafts["all"]


@needs_native
def test_passes_of_the_draft_are_recorded(model_folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    """Passes of the draft run as recorded C++ kernel calls, too; see tests/engine_svc/runner/test_native_calls.py."""
    target, draft = model_folder("llama"), model_folder("qwen3", num_hidden_layers=2)
    with running_engine(target, dtype="bfloat16") as engine:
        expected = tokens(run(engine, PROMPTS, SEEDED))
    for chosen in (target, draft):
        caplog.clear()
        with (
            caplog.at_level("DEBUG", RECORDER),
            drafting(target, chosen, dtype="bfloat16") as (engine, drafter),
        ):
            assert tokens(run(engine, PROMPTS, SEEDED)) == expected
        # Other loggers tell things too if an earlier test in this process has configured them.
        told = [record.getMessage() for record in caplog.records if record.name == RECORDER]
        kinds = {message.partition(";")[0] for message in told}
        assert len(kinds) == 2  # calls of the target's pass, whose last layer has output rows, and of the draft's
        assert all(kind.startswith("recorded") for kind in kinds)
        assert chosen is draft or drafter.drafts["right"] == drafter.drafts["all"]


@pytest.mark.slow
@pytest.mark.parametrize("draft_ranks", [1, 2])
def test_two_ranks(model_folder: ModelFolder, draft_ranks: int) -> None:
    folder = model_folder("llama")
    config = {"method": "draft_model", "model": str(folder), "draft_tensor_parallel_size": draft_ranks}
    expected, drafter = plain(folder, SEEDED), RankDrafter(3)
    with running_engine(folder, drafter=drafter, speculative_config=config, tensor_parallel_size=2) as engine:
        assert tokens(run(engine, PROMPTS, SEEDED)) == expected
    assert drafter.drafts["all"] > 30
    assert drafter.drafts["right"] == drafter.drafts["all"]


def test_vocabularies_of_different_sizes(model_folder: ModelFolder) -> None:
    """The vocabularies may differ in size, since checkpoints with the same tokenizer differ in padding."""
    small, large = model_folder("llama"), model_folder("qwen3", vocab_size=180)
    for target, draft in ((small, large), (large, small)):
        expected = plain(target, SEEDED)
        with drafting(target, draft) as (engine, _):
            assert tokens(run(engine, PROMPTS, SEEDED)) == expected
