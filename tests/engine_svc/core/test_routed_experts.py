"""The experts that tokens were routed to are those that the Transformers library picks, wherever keys come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.errors import StartupError
from quire.options.speculative import SpeculativeConfig
from tests.support.run_engine import GREEDY, Output, random_prompts, run, run_requests, running_engine, spec_of
from tests.support.tiny_models import load_reference, make_model

LAYERS, CHOSEN = 3, 3  # the first layer has no experts
SAMPLING = msgspec.structs.replace(GREEDY, max_tokens=12)
RETURNED = {"enable_return_routed_experts": True, "max_model_len": 128}
Routes = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("mixture") / "model", "qwen3-moe", num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return load_reference(folder)


def routes(output: Output) -> Routes:
    return np.frombuffer(b"".join(output.routed_experts), np.uint8).reshape(-1, LAYERS, CHOSEN)


def check(reference: Any, prompt: list[int], output: Output, start: int = 0) -> None:
    """Asserts that all tokens but the last have their routes, in the order of the routers' choices."""
    token_ids = [*prompt, *output.token_ids]
    with torch.no_grad():
        logits = reference(torch.tensor([token_ids[:-1]]), output_router_logits=True).router_logits
    expected = torch.stack([each.topk(CHOSEN).indices for each in logits], 1)[start:]
    found = routes(output)
    assert found.shape == (len(token_ids) - 1 - start, LAYERS, CHOSEN)
    assert not found[:, 0].any()
    assert found[:, 1:].tolist() == expected.tolist()
    assert len(output.routed_experts) == len(output.token_ids)


def test_prompts_in_chunks_choices_and_cached_prefixes(folder: Path, reference: Any) -> None:
    prompts = random_prompts(5, 40, 23)
    with running_engine(folder, max_num_seqs=4, max_num_batched_tokens=16, block_size=16, **RETURNED) as engine:
        for _ in range(2):  # the second time, most of each prompt is cached
            for prompt, choices in zip(prompts, run(engine, prompts, SAMPLING), strict=True):
                check(reference, prompt, choices[0])
        several = msgspec.structs.replace(SAMPLING, n=3, temperature=1.0, routed_experts_prompt_start=7)
        (choices,) = run(engine, prompts[1:2], several)
        for choice in choices:
            check(reference, prompts[1], choice, start=7)


def test_preempted_sequences(folder: Path, reference: Any) -> None:
    prompts = random_prompts(30, 30, 30)
    sampling = msgspec.structs.replace(GREEDY, max_tokens=40)
    with running_engine(folder, num_blocks=9, block_size=16, **RETURNED) as engine:
        found = run(engine, prompts, sampling)
        assert engine.load().counters.preemptions
    for prompt, (output,) in zip(prompts, found, strict=True):
        check(reference, prompt, output)


def test_wrong_guesses_leave_nothing(folder: Path, reference: Any) -> None:
    speculation = msgspec.to_builtins(SpeculativeConfig(method="ngram", num_speculative_tokens=3))
    prompt = random_prompts(4)[0] * 6
    with running_engine(folder, speculative_config=speculation, **RETURNED) as engine:
        check(reference, prompt, run(engine, [prompt], SAMPLING)[0][0])


def test_a_request_that_moved_reports_what_is_new(folder: Path, reference: Any) -> None:
    prompt = random_prompts(9)[0]
    with running_engine(folder, **RETURNED) as engine:
        whole = run(engine, [prompt], SAMPLING)[0][0]
        progress = (ChoiceProgress(whole.token_ids[:5]),)
        rest = run_requests(engine, [GenerationRequest("r", prompt, SAMPLING, progress=progress)])[0][0]
    check(reference, prompt, whole)
    assert rest.routed_experts == whole.routed_experts[5:]


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("llama", {}, "needs a model of Quire's own families with experts"),
        ("qwen3-moe", {"model_impl": "transformers"}, "needs a model of Quire's own families with experts"),
        ("qwen3-moe", {"enable_dbo": True}, "cannot be combined with --enable-dbo"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path: Path, family: str, options: Any, words: str) -> None:
    folder = make_model(tmp_path / "model", family)
    with pytest.raises(StartupError, match=words):
        spec_of(folder, dtype="float32", **RETURNED, **options)
