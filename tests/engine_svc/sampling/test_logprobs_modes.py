"""What is reported as log-probabilities in each of the four modes, for outputs and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine_svc.core import live_requests
from engine_svc.plan import PositionLogprobs
from engine_svc.requests import sampling_validation
from engine_svc.requests.request import GenerationRequest, RequestLimits
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from quire.errors import InvalidRequest, Overloaded
from quire.sampling import SamplingParameters
from tests.support.plans import sampling_plan
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.tiny_models import VOCAB_SIZE, make_model

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
SIZE = 12
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -2.5, -3.0, -9.0])
PLANS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2},
    {"temperature": 1.7, "top_k": 6, "top_p": 0.8, "min_p": 0.1}, {"temperature": 0.0, "top_k": 2},
    {"logit_bias": ((4, 3.0), (0, -1.0)), "temperature": 0.3}, {"bad_words": ((1,),), "allowed_token_ids": (1, 4, 5)},
    {"presence_penalty": 1.0, "temperature": 2.0}, {"min_tokens": 3, "suppress_token_ids": (0, 1), "top_k": 2},
]  # fmt: skip


def drawn_from(logits: torch.Tensor, wanted: SamplingParameters, forbidden: tuple[int, ...] = ()) -> torch.Tensor:
    """Computes processed logits by definition, in float64, token by token. The sequence already has token 3 once."""
    values = logits.double().clone()
    for token_id, bias in wanted.logit_bias:
        values[token_id] += bias
    values[3] -= wanted.presence_penalty
    banned = {*forbidden, *(run[0] for run in wanted.bad_words)}
    allowed = set(wanted.allowed_token_ids or range(len(values))) - banned
    values[[token_id for token_id in range(len(values)) if token_id not in allowed]] = -torch.inf
    if wanted.is_greedy:
        return values
    values /= wanted.temperature
    probabilities = values.softmax(-1)
    probabilities[probabilities < wanted.min_p * probabilities.max()] = 0.0
    order = probabilities.argsort(descending=True, stable=True).tolist()
    if wanted.top_k:
        probabilities[order[wanted.top_k :]] = 0.0
    total, before = float(probabilities.sum()), 0.0
    for token_id in order:
        share = float(probabilities[token_id]) / total
        if before >= wanted.top_p and wanted.top_p < 1.0:
            probabilities[token_id] = 0.0
        before += share
    return values.masked_fill(probabilities == 0.0, -torch.inf)


def check(positions: list[PositionLogprobs], expected: list[torch.Tensor]) -> None:
    """Checks that each position lists all tokens in descending order, preceded by the token at that position."""
    for position, values in zip(positions, expected, strict=True):
        own, *others = position.token_ids
        assert sorted(others) == list(range(len(values)))
        assert position.logprobs == pytest.approx(values[position.token_ids].tolist(), abs=1e-4)
        assert position.logprobs[1:] == sorted(position.logprobs[1:], reverse=True)
        assert position.rank == 1 + int((values > values[own] + 1e-6).sum())


@pytest.mark.parametrize("mode", MODES)
def test_outputs(mode: str) -> None:
    sampler = Sampler(len(PLANS), SIZE, torch.device("cpu"), mode)
    plans = [sampling_plan(logprobs=SIZE, seed=slot, **fields) for slot, fields in enumerate(PLANS)]
    for slot, plan in enumerate(plans):
        sampler.add(slot, plan, [9, 3], 1)
    output = sampler.sample(LOGITS.repeat(len(plans), 1), SampledRows(list(range(len(plans))), [2] * len(plans)))
    expected = []
    for plan in plans:
        is_raw = mode.startswith("raw")
        values = LOGITS.double() if is_raw else drawn_from(LOGITS, plan.parameters, plan.suppress_token_ids)
        expected.append(values.log_softmax(-1) if mode.endswith("logprobs") else values)
    check(list(output.logprobs().values()), expected)


@pytest.mark.parametrize("limits", [{"top_k": 5}, {"top_p": 0.5}, {"top_k": 9, "top_p": 0.5}], ids=str)
def test_a_token_that_was_drawn_from_ties_has_a_probability(limits: dict[str, Any]) -> None:
    sampler, rows = Sampler(32, SIZE, torch.device("cpu"), "processed_logprobs"), list(range(32))
    for slot in rows:
        sampler.add(slot, sampling_plan(logprobs=0, seed=slot, temperature=1.0, **limits), [9, 3], 1)
    output = sampler.sample(torch.ones(len(rows), SIZE), SampledRows(rows, [2] * len(rows)))
    own = [position.logprobs[0] for position in output.logprobs().values()]
    assert all(-2.5 < each < -1.3 for each in own), own


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_may_ask_for_what_it_is_drawn_from(mode: str) -> None:
    """In every mode, and regardless of the sequences beside it, a request can have processed log-probabilities."""
    sampler, fields = Sampler(2, SIZE, torch.device("cpu"), mode), PLANS[7]
    for slot, asks in ((0, False), (1, True)):
        sampler.add(slot, sampling_plan(logprobs=SIZE, processed_logprobs=asks, **fields), [9, 3], 1)
    other, own = sampler.sample(LOGITS.repeat(2, 1), SampledRows([0, 1], [2, 2])).logprobs().values()
    processed = drawn_from(LOGITS, sampling_plan(**fields).parameters)
    values = LOGITS.double() if mode.startswith("raw") else processed
    check([other, own], [values.log_softmax(-1) if mode.endswith("logprobs") else values, processed.log_softmax(-1)])


def test_prompts(tmp_path: Path) -> None:
    """Covers chunked prompts, to which penalties and bad words do not apply."""
    folder, [prompt] = make_model(tmp_path, "llama-untied"), random_prompts(21)
    sampling = replace(
        GREEDY, temperature=0.7, top_k=9, logit_bias=((5, 4.0),), max_tokens=1, prompt_logprobs=VOCAB_SIZE, seed=1
    )
    with running_engine(folder, logprobs_mode="raw_logits") as engine:
        [[raw]] = run(engine, [prompt], sampling)
    logits = [torch.empty(VOCAB_SIZE).scatter(0, *_entries(position)) for position in raw.prompt_logprobs]
    assert len(logits) == len(prompt) - 1
    looking_back = replace(sampling, repetition_penalty=2.0, bad_words=((prompt[-1], 7),))
    for mode, normalised in (("processed_logits", False), ("processed_logprobs", True)):
        with running_engine(folder, logprobs_mode=mode, max_num_batched_tokens=8) as engine:
            outputs = run(engine, [prompt], sampling) + run(engine, [prompt], looking_back)
        values = [drawn_from(each, sampling) for each in logits]
        for [output] in outputs:
            check(output.prompt_logprobs, [each.log_softmax(-1) if normalised else each for each in values])


def _entries(position: PositionLogprobs) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(position.token_ids[1:]), torch.tensor(position.logprobs[1:])


def test_requests_with_very_many_alternatives_do_not_fill_the_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third one is refused for now, while others are accepted; the size of a single request is limited as well."""
    monkeypatch.setattr(sampling_validation, "MANY_LOGPROBS", 100)
    monkeypatch.setattr(live_requests, "MAX_STEP_LOGPROB_ENTRIES", 2 * VOCAB_SIZE)
    many = replace(GREEDY, logprobs=VOCAB_SIZE, max_tokens=3)
    [prompt] = random_prompts(5)
    with running_engine(make_model(tmp_path, "llama-untied")) as engine:
        for turn in (0, 10):
            for key, sampling in enumerate([many, many, many, replace(many, logprobs=5)], turn):
                engine.add(key, GenerationRequest("r", prompt, sampling))
            deltas = [delta for _ in range(40) if engine.has_work for delta in engine.step()]
            errors = {delta.key: delta.error for delta in deltas if delta.error}
            assert errors.keys() == {turn + 2}
            assert isinstance(errors[turn + 2], Overloaded)
            assert {delta.key for delta in deltas if delta.is_final} == set(range(turn, turn + 4))
    monkeypatch.setattr(sampling_validation, "MAX_STEP_LOGPROB_ENTRIES", 2 * VOCAB_SIZE)
    limits = RequestLimits(("tiny",), VOCAB_SIZE, 256, VOCAB_SIZE, "fcfs")
    sampling_validation.check_sampling(replace(many, n=2), limits)
    with pytest.raises(InvalidRequest, match="Lower n"):
        sampling_validation.check_sampling(replace(many, n=3), limits)
