"""The warm-up at startup takes as much memory as anything that is served later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from engine_svc.plan import NewSequence, SamplingPlan, TokenMasks
from engine_svc.runner.warm_up import drawing_steps, prompt_steps, tail_step
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.stages.base import SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.penalties import Penalties
from quire.sampling import SamplingParameters

CPU = torch.device("cpu")
# More rows than are scored at a time when log-probabilities of processed logits are wanted.
SEQUENCES, VOCABULARY = 150, 2048
SERVED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "truncated": {"top_k": 900, "top_p": 0.99, "min_p": 0.001},
    "penalised": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "told": {"logprobs": 20},
    "told of what is drawn from": {"logprobs": 20, "processed_logprobs": True, "top_p": 0.9},
    "all": {
        "top_k": 900, "top_p": 0.99, "min_p": 0.001, "repetition_penalty": 1.2, "logprobs": 20,
        "allowed_token_ids": (1, 2, 3), "logit_bias": ((5, 1.0),), "bad_words": ((7,),),
    },
}  # fmt: skip


def peak_bytes(call: Callable[[], object]) -> int:
    """Returns the most memory that tensors take during the call, in addition to what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    assert found.profiler is not None and found.profiler.kineto_results is not None
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


def draw(sampler: Sampler, sequences: Sequence[NewSequence], masks: TokenMasks) -> None:
    for each in sequences:
        sampler.add(each.slot, each.sampling, each.token_ids, each.num_prompt_tokens)
    slots = [each.slot for each in sequences]
    logits = torch.randn(len(slots), VOCABULARY, generator=torch.Generator().manual_seed(0))
    sampler.sample(logits, SampledRows(slots, [len(each.token_ids) for each in sequences]), masks)


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """A sampler like a GPU's, whose kernels draw without copying the logits."""
    monkeypatch.setattr("engine_svc.sampling.choosers.draw_rows", lambda logits, *_: logits.argmax(-1))
    made = Sampler(SEQUENCES, VOCABULARY, CPU)
    made.reserve(64)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("wanted", SERVED)
def test_no_sequences_take_more_to_draw(sampler: Sampler, wanted: str) -> None:
    steps = list(drawing_steps(range(SEQUENCES), 1, VOCABULARY))
    warmed = max(peak_bytes(partial(draw, sampler, plan.new_sequences, masks)) for plan, masks in steps)
    sampling = SamplingPlan(SamplingParameters(**SERVED[wanted]), follows_grammar=wanted == "all")
    served = [NewSequence(slot, [slot, 9, 9, 8], 2, 0, [[0]], sampling) for slot in range(SEQUENCES)]
    assert peak_bytes(partial(draw, sampler, served, steps[0][1])) <= warmed


def test_what_is_reserved_for_penalties_is_enough() -> None:
    """There is room for all tokens of the longest sequence and the next one, so the tables are not reallocated."""
    penalties = Penalties(2, VOCABULARY, CPU)
    penalties.reserve(65)
    tables, sampling = penalties._ids, SamplingPlan(SamplingParameters(repetition_penalty=1.2))
    assert penalties.add(0, SlotSequence(sampling, [*range(63)], 63))
    for length in (63, 64):
        recorder = penalties.apply(LogitEdits(torch.zeros(1, VOCABULARY)), StageRows([0], [0], [length]))
        recorder.record(torch.tensor([99]))
    assert penalties._ids is tables


def test_a_prompt_takes_blocks_of_each_group() -> None:
    prefill, few, decode = prompt_steps(40, 3, 2, 100, num_wanted_drafts=2, query_lens=(3, 1))
    (prompt,) = prefill.new_sequences
    assert prompt.block_ids == [[0, 1, 2], [3, 4, 5]]
    assert len(prompt.token_ids) == prefill.num_tokens == 40
    for plan, count in ((few, 3), (decode, 1)):
        (scheduled,) = plan.scheduled
        assert (scheduled.num_computed_tokens, scheduled.num_new_tokens) == (40 - count, count)
        assert scheduled.num_wanted_drafts == 2


def test_a_long_context_takes_a_block_of_each_group() -> None:
    plan = tail_step(9, 100, 16, 2)
    (prompt,), (scheduled,) = plan.new_sequences, plan.scheduled
    assert prompt.block_ids == [[0] * 7, [1] * 7]
    assert len(prompt.token_ids) == prompt.num_prompt_tokens == 109
    assert (scheduled.num_computed_tokens, scheduled.num_new_tokens) == (100, 9)
