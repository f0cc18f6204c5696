"""Requests continued after another worker began them: at every cut, the rest equals that of the undisturbed output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.reasoning import ReasoningMarks
from quire.sampling import LogitsProcessorCall, RepetitionDetection, SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.support import logits_processors
from tests.support.run_engine import random_prompts, run, run_requests, running_engine

pytestmark = pytest.mark.slow

PROMPT = random_prompts(37, seed=3)[0]
PLAIN = SamplingParameters(temperature=0.0, max_tokens=36)
SAMPLED = replace(PLAIN, temperature=1.3, seed=7)

# Sampling parameters, some of which are derived from the tokens of the plain greedy output.
SAMPLINGS: dict[str, Callable[[list[int]], SamplingParameters]] = {
    "greedy": lambda plain: PLAIN,
    "sampled": lambda plain: SAMPLED,
    "truncated": lambda plain: replace(SAMPLED, top_k=20, top_p=0.9, min_p=0.02),
    "top-k": lambda plain: replace(SAMPLED, top_k=5),
    "penalties": lambda plain: replace(PLAIN, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.3),
    "sampled-penalties": lambda plain: replace(SAMPLED, frequency_penalty=2.0, repetition_penalty=0.8),
    "logprobs": lambda plain: replace(SAMPLED, logprobs=3, prompt_logprobs=1),
    "logprobs-by-name": lambda plain: replace(SAMPLED, logprobs=0, logprob_token_ids=(5, plain[0])),
    "stop": lambda plain: replace(PLAIN, stop_token_ids=(plain[17],)),
    "min-tokens": lambda plain: replace(PLAIN, stop_token_ids=tuple(plain), min_tokens=20),
    "bad-words": lambda plain: replace(PLAIN, bad_words=(*pairwise(plain), (PROMPT[-1], plain[0]), (plain[5],))),
    "processors": lambda plain: replace(
        SAMPLED, logits_processors=(LogitsProcessorCall(f"{logits_processors.__name__}.Successor", b"[1, 20]"),)
    ),
    "thinking-budget": lambda plain: replace(
        SAMPLED, thinking_token_budget=9, reasoning=ReasoningMarks((plain[0],), (5, 6, 5)), top_k=9
    ),
    "repetition": lambda plain: replace(
        PLAIN, allowed_token_ids=tuple(plain[:2]), repetition_detection=RepetitionDetection(7, 1, 3), min_tokens=9
    ),
    "allowed": lambda plain: replace(SAMPLED, allowed_token_ids=tuple(plain[:3])),
    "bias": lambda plain: replace(PLAIN, logit_bias=((plain[3], -50.0), (9, 4.0))),
}


def resumed(sampling: SamplingParameters, progress: list[ChoiceProgress]) -> GenerationRequest:
    """Returns the request as another worker gets it, with the seed and everything else unchanged."""
    return GenerationRequest("r", PROMPT, sampling, progress=tuple(progress))


def check_every_cut(origin: Engine, target: Engine, sampling: SamplingParameters) -> None:
    """Checks how `target` continues, wherever the output of `origin` is cut."""
    whole = run(origin, [PROMPT], sampling)[0]
    count = len(whole[0].token_ids)
    requests = [resumed(sampling, [ChoiceProgress(whole[0].token_ids[:cut])]) for cut in range(count)]
    for cut, (rest,) in enumerate(run_requests(target, requests)):
        assert rest.token_ids == whole[0].token_ids[cut:], cut
        assert (rest.finish_reason, rest.stop_token_id) == (whole[0].finish_reason, whole[0].stop_token_id)
        assert len(rest.prompt_logprobs) == (0 if cut else len(whole[0].prompt_logprobs))
        assert len(rest.logprobs) == len(whole[0].logprobs[cut:])
        for here, there in zip(rest.logprobs, whole[0].logprobs[cut:], strict=True):
            assert (here.token_ids, here.rank) == (there.token_ids, there.rank)
            assert here.logprobs == pytest.approx(there.logprobs, abs=1e-4)
        usage = rest.usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), count)
        assert usage.cached_prompt_tokens <= len(PROMPT)
        assert min(usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds) >= 0


@pytest.fixture(scope="module")
def workers(model_folder: ModelFolder) -> Iterator[tuple[Engine, Engine]]:
    """Two with the same model, of which the second keeps nothing of earlier requests."""
    folder = model_folder("llama")
    with running_engine(folder) as origin, running_engine(folder, enable_prefix_caching=False) as target:
        yield origin, target


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_cut(workers: tuple[Engine, Engine], name: str) -> None:
    origin, target = workers
    plain = run(origin, [PROMPT], PLAIN)[0][0].token_ids
    sampling = SAMPLINGS[name](plain)
    if name != "greedy":
        assert sampling.logprobs or run(origin, [PROMPT], sampling)[0][0].token_ids != plain
    check_every_cut(origin, target, sampling)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"max_num_batched_tokens": 7}),
        ("llama", {"num_blocks": 24, "max_model_len": 96}),
        ("llama", {"num_blocks": 24, "max_model_len": 96, "num_host_blocks": 30}),
        ("llama", {"attention_backend": "reference", "block_size": 4}),
        ("gemma3", {"max_num_batched_tokens": 9}),
        ("mistral", {}),
        ("deepseek-v3", {}),
        ("jamba", {"max_num_batched_tokens": 9, "mamba_block_size": 16}),
        ("bamba", {"num_blocks": 24, "max_model_len": 96, "mamba_block_size": 16}),
        ("biogpt", {}),
    ],
)
def test_every_cut_on_another_worker(model_folder: ModelFolder, family: str, options: dict[str, Any]) -> None:
    """Holds with chunked prefill, preemption, the host tier, windows, and prefixes cached by the other requests."""
    folder = model_folder(family)
    with running_engine(folder) as origin, running_engine(folder, **options) as target:
        for sampling in (PLAIN, SAMPLINGS["sampled-penalties"]([])):
            check_every_cut(origin, target, sampling)
        assert target.load().counters.prefix_cache_hits > 0
        assert ("num_blocks" not in options) or target.load().counters.preemptions > 0


def test_the_worker_that_began_can_go_on(model_folder: ModelFolder) -> None:
    """The worker's cache still holds the prompt and the output, so the whole prompt counts as cached."""
    with running_engine(model_folder("llama")) as engine:
        whole = run(engine, [PROMPT], SAMPLED)[0]
        request = resumed(SAMPLED, [ChoiceProgress(whole[0].token_ids[:30])])
        rest = run_requests(engine, [request])[0][0]
        assert rest.token_ids == whole[0].token_ids[30:]
        assert rest.usage is not None
        assert rest.usage.cached_prompt_tokens == len(PROMPT)


@pytest.mark.parametrize(
    ("family", "finished", "caching"),
    [("llama", 0, True), ("llama", 1, False), ("gemma3", 0, False), ("gemma3", 1, True)],
)
def test_choices(model_folder: ModelFolder, family: str, finished: int, caching: bool) -> None:
    """One of three sequences is finished, and the others are cut at every position."""
    folder = model_folder(family)
    with running_engine(folder) as origin, running_engine(folder, enable_prefix_caching=caching) as target:
        plain = run(origin, [PROMPT], replace(SAMPLED, n=3, max_tokens=24))[0]
        sampling = replace(SAMPLED, n=3, max_tokens=24, logprobs=1, stop_token_ids=(plain[finished].token_ids[5],))
        whole = run(origin, [PROMPT], sampling)[0]
        lengths = [len(choice.token_ids) for choice in whole]
        assert lengths[finished] < max(lengths)
        requests = []
        for cut in range(max(lengths)):
            cuts = [min(cut + index, length - 1) for index, length in enumerate(lengths)]
            cuts[finished] = lengths[finished]
            parts = zip(whole, cuts, lengths, strict=True)
            progress = [ChoiceProgress(out.token_ids[:most], most == length) for out, most, length in parts]
            requests.append(resumed(sampling, progress))
        for request, rests in zip(requests, run_requests(target, requests), strict=True):
            for choice, rest, out in zip(request.progress, rests, whole, strict=True):
                assert rest.token_ids == out.token_ids[len(choice.token_ids) :]
                assert (rest.finish_reason is None) == choice.finished
                assert choice.finished or rest.finish_reason is out.finish_reason
            usages = [rest.usage for rest in rests if rest.usage]
            assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(len(PROMPT), sum(lengths))]


def test_steps_ahead(model_folder: ModelFolder) -> None:
    """Covers a rank process, where the next step is planned before the last one's tokens are known."""
    folder = model_folder("llama")
    with running_engine(folder) as origin, running_engine(folder, distributed_executor_backend="mp") as target:
        plain = run(origin, [PROMPT], PLAIN)[0][0].token_ids
        for name in ("sampled", "penalties", "bad-words", "thinking-budget"):
            check_every_cut(origin, target, SAMPLINGS[name](plain))


def test_steps_ahead_with_too_few_blocks(model_folder: ModelFolder) -> None:
    """Sampling state that only the device holds is restored after a preemption."""
    folder, few = model_folder("llama"), {"num_blocks": 24, "max_model_len": 96, "distributed_executor_backend": "mp"}
    with running_engine(folder) as origin, running_engine(folder, **few) as target:
        plain = run(origin, [PROMPT], PLAIN)[0][0].token_ids
        for name in ("penalties", "bad-words", "thinking-budget", "processors", "repetition"):
            before = target.load().counters.preemptions
            check_every_cut(origin, target, SAMPLINGS[name](plain))
            assert target.load().counters.preemptions > before or name == "repetition"
