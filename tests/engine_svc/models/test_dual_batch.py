"""Steps that run as two halves answer as whole ones do. Tensor ranks are threads, except in the last tests."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.requests.request import GenerationRequest
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_prompt_embeds import looked_up
from tests.engine_svc.models.test_prompt_embeds import request as embedded
from tests.support.data_ranks import running_data_ranks
from tests.support.exact_answers import check_answers
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import VOCAB_SIZE, check_greedy

PROMPTS, SHORT = random_prompts(1, 5, 33, 70), replace(GREEDY, max_tokens=12)
CUT = {"enable_dbo": True, "dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 8, "cpu_threads": 1}
CHUNKS = {"max_num_batched_tokens": 19}
MOVING = {
    "enable_expert_parallel": True, "enable_eplb": True, "eplb_config": {"step_interval": 12, "window_size": 8}
}  # fmt: skip


def tensor(**options: Any) -> dict[str, Any]:
    """Options for two tensor ranks."""
    return {"executor": TensorExecutor(), "tensor_parallel_size": 2} | CUT | options


def num_cut(engine: Engine) -> int:
    return engine.load().counters.dual_batch_steps


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", CHUNKS),
        ("qwen3-moe", {"enable_expert_parallel": True}),
        ("qwen3-next", CHUNKS),  # with recurrent layers
        pytest.param("deepseek-v3", {"decode_context_parallel_size": 2}, marks=pytest.mark.slow),
        pytest.param("gpt-oss", CHUNKS, marks=pytest.mark.slow),  # a slice of every expert on each rank, windows
        pytest.param("llama", {"batch_invariant": True}, marks=pytest.mark.slow),
    ],
)
def test_families(model_folder: ModelFolder, family: str, options: dict[str, Any]) -> None:
    folder = model_folder(family)
    with running_engine(folder, **tensor(**options)) as engine:
        found = run(engine, PROMPTS, replace(SHORT, logprobs=4))
        assert num_cut(engine)
    check_answers(folder, PROMPTS, found, 12)


def test_prefix_hits_preemption_and_thresholds(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    (first,) = random_prompts(70)
    prompts = [first + tail for tail in random_prompts(3, 20, 1, 9, seed=1)]
    with running_engine(folder, num_blocks=12, **tensor(**CHUNKS)) as engine:
        run(engine, random_prompts(8), SHORT)
        run(engine, random_prompts(4, 4), SHORT)
        assert not num_cut(engine)  # neither prompts nor decoding exceed the thresholds
        run(engine, random_prompts(2, 2, 2), SHORT)
        assert 0 < num_cut(engine) <= 12  # decoding steps, of three sequences
        run(engine, [first], SHORT)
        outputs = run(engine, prompts, replace(GREEDY, max_tokens=40))
        counters = engine.load().counters
    check_greedy(folder, prompts, tokens(outputs), 40)
    assert counters.preemptions
    assert counters.prefix_cache_hits


def test_what_is_guessed_and_what_comes_as_embeddings(model_folder: ModelFolder) -> None:
    """A sequence with several new tokens may span both halves, and so may a prompt of embeddings."""
    folder, drafter = model_folder("llama"), ReplayingDrafter(VOCAB_SIZE)
    requests = [GenerationRequest(str(number), prompt, SHORT) for number, prompt in enumerate(PROMPTS)]
    requests += [embedded(rows, SHORT) for rows in looked_up(folder, PROMPTS)]
    with running_engine(folder, drafter=drafter, **tensor(**CHUNKS)) as engine:
        found = tokens(run_requests(engine, requests))
        drafter.know(requests, [[each] for each in found])
        assert tokens(run_requests(engine, requests)) == found
        assert num_cut(engine)
    assert drafter.num_right
    check_greedy(folder, PROMPTS * 2, found, 12)


def test_one_rank_has_nothing_to_hide(model_folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder = model_folder("llama")
    with running_engine(folder, **CUT) as engine:
        check_greedy(folder, PROMPTS, tokens(run(engine, PROMPTS, SHORT)), 12)
        assert not num_cut(engine)
    assert "--enable-dbo has no effect" in caplog.text


def test_passes_of_the_transformers_library_are_not_cut(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="which does not support --enable-dbo"),
        running_engine(model_folder("llama"), model_impl="transformers", **CUT),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"enable_expert_parallel": True}, {"pipeline_parallel_size": 2}], ids=["experts", "stages"]
)
def test_ranks_that_are_processes(
    model_folder: ModelFolder, capfd: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    folder = model_folder("qwen3-moe")
    with running_engine(folder, **CUT | CHUNKS | {"tensor_parallel_size": 2} | options) as engine:
        found = run(engine, PROMPTS, replace(SHORT, logprobs=4))
        assert num_cut(engine)
    check_answers(folder, PROMPTS, found, 12)
    assert "steps that decode more than 2 tokens, and those with prompts of more than 8, run as two" in (
        capfd.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama4", {"num_blocks": 16}),  # preempted, a slice of every expert on each rank
        ("qwen3-moe", {"tensor_parallel_size": 2} | MOVING),
    ],
    ids=["parts of experts", "tensor ranks, experts that move"],
)
def test_data_ranks(model_folder: ModelFolder, family: str, options: dict[str, Any]) -> None:
    """Ranks work at different times on prompts with shared prefixes; then one of them is idle."""
    folder = model_folder(family)

    def serve(number: int, engine: Engine) -> None:
        drawn, (beginning,) = random.Random(number), random_prompts(40, seed=number)
        for turn in range(4):
            prompts = random_prompts(*(drawn.randint(1, 40) for _ in range(drawn.randint(1, 4))), seed=turn)
            prompts = [beginning + prompt if turn % 2 else prompt for prompt in prompts]
            sampling = replace(GREEDY, max_tokens=drawn.randint(1, 30))
            check_greedy(folder, prompts, tokens(run(engine, prompts, sampling)), sampling.max_tokens or 0)
            time.sleep(drawn.choice([0.0, 0.1, 0.3]))

    def serve_alone(number: int, engine: Engine) -> int:
        before = num_cut(engine)
        if number:
            check_greedy(folder, PROMPTS, tokens(run(engine, PROMPTS, SHORT)), 12)
        return num_cut(engine) - before

    with running_data_ranks(folder, 2, **CUT | CHUNKS | options) as ranks:
        ranks.each(serve)
        cut = ranks.each(serve_alone)
    assert cut[0] == 0
    assert cut[1] > 8
