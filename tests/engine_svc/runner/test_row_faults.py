"""A request's fault is its own: neighbors, cache and process go on as if it had never come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.models.decoder import Decoder
from engine_svc.requests.outputs import SequenceDelta
from engine_svc.requests.request import GenerationRequest, RequestLimits
from engine_svc.requests.validation import validate
from engine_svc.sampling.isolation import sample_rows
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from quire.errors import InvalidRequest
from quire.reasoning import ReasoningMarks
from quire.sampling import SAMPLING_BOUNDS, LogitsProcessorCall, RepetitionDetection, SamplingParameters
from tests.support import logits_processors
from tests.support.plans import sampling_plan
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import random_prompts, running_engine
from tests.support.tiny_models import VOCAB_SIZE, make_model

PROMPTS = random_prompts(19, 37, seed=5)
NEIGHBOUR = SamplingParameters(
    temperature=0.9, seed=4, top_p=0.95, max_tokens=24, logprobs=1, frequency_penalty=0.5, ignore_eos=True
)
EOS = 3
OWN = logits_processors.__name__
LIMITS = RequestLimits(("tiny",), VOCAB_SIZE, 256, 20, "fcfs", frozenset({EOS}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama-untied")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with running_engine(folder, eos_token_ids=(EOS,)) as engine:
        yield engine


def run(engine: Engine, requests: dict[int, GenerationRequest]) -> dict[int, list[SequenceDelta]]:
    """Runs requests until each has ended and no blocks are in use; returns all deltas of each."""
    for key, request in requests.items():
        engine.add(key, request)
    found: dict[int, list[SequenceDelta]] = {key: [] for key in requests}
    while engine.has_work:
        for delta in engine.step():
            found[delta.key].append(delta)
        engine.check()
    assert all(deltas[-1].is_final for deltas in found.values())
    assert engine.load().used_kv_blocks == 0
    return found


def tokens(deltas: list[SequenceDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def neighbours() -> dict[int, GenerationRequest]:
    return {key: GenerationRequest(f"r{key}", prompt, NEIGHBOUR) for key, prompt in enumerate(PROMPTS)}


@pytest.fixture(scope="module")
def undisturbed(engine: Engine) -> dict[int, list[SequenceDelta]]:
    """What the neighbors get when they run alone."""
    found = run(engine, neighbours())
    assert all(len(tokens(deltas)) == NEIGHBOUR.max_tokens for deltas in found.values())
    return found


def edges(name: str, *more: Any) -> st.SearchStrategy[Any]:
    """Draws a parameter's bounds, and the given values near them."""
    bound = SAMPLING_BOUNDS[name]
    ends = [bound.minimum] if not bound.minimum_excluded else []
    ends += [bound.maximum] if bound.maximum < 2**62 else []
    return st.sampled_from([*ends, *more])


SAMPLINGS = st.builds(
    SamplingParameters,
    n=st.sampled_from([1, 2, 5]),
    max_tokens=st.sampled_from([0, 1, 2, 20, None]),
    min_tokens=st.sampled_from([0, 1, 2, 20, 200]),
    temperature=edges("temperature", 1e-38, 1e-6, 1e-5, 1.0),
    top_p=edges("top_p", 1e-38, 1e-6, 0.5),
    top_k=edges("top_k", 1, VOCAB_SIZE - 1, VOCAB_SIZE, VOCAB_SIZE + 1),
    min_p=edges("min_p", 1e-38, 0.5),
    repetition_penalty=edges("repetition_penalty", 1e-38, 0.5, 1.0, 3e38),
    presence_penalty=edges("presence_penalty", 0.0),
    frequency_penalty=edges("frequency_penalty", 0.0),
    seed=st.sampled_from([None, 0, -1, -(2**63), 2**63 - 1]),
    stop_token_ids=st.sampled_from([(), (EOS,), (0, VOCAB_SIZE - 1), tuple(range(VOCAB_SIZE - 128, VOCAB_SIZE))]),
    ignore_eos=st.booleans(),
    logit_bias=st.sampled_from(
        [(), ((0, 100.0),), ((5, -100.0), (9, 0.0)), tuple((token_id, -100.0) for token_id in range(VOCAB_SIZE))]
    ),
    allowed_token_ids=st.sampled_from([(), (EOS,), (5, 9), (VOCAB_SIZE - 1,), tuple(range(VOCAB_SIZE))]),
    bad_words=st.sampled_from(
        [(), ((5,),), ((9, 5), (5, 9), (5, 5)), tuple((token_id, token_id) for token_id in range(256)), ((1,) * 256,)]
    ),
    repetition_detection=st.builds(
        RepetitionDetection,
        max_pattern_size=st.sampled_from([0, 1, 1024]),
        min_pattern_size=st.sampled_from([0, 1, 1024]),
        min_count=st.sampled_from([0, 2, 2**31 - 1]),
    ),
    thinking_token_budget=edges("thinking_token_budget", None, 1, 9),
    reasoning=st.sampled_from(
        [
            None,
            ReasoningMarks((), (EOS,)),
            ReasoningMarks((5,) * 16, (9,) * 16, is_open=True),
            ReasoningMarks((VOCAB_SIZE - 1,), (5, 0), is_optional=True, blank_token_ids=(1, 2)),
        ]
    ),
    vllm_xargs=st.sampled_from([b"", b"{}", b'{"a": [1, 2.5, "b"]}', b"[]", b"{", b"[" * 10000]),
    logits_processors=st.sampled_from([(), (LogitsProcessorCall(f"{OWN}.Successor", b"[0]", b'{"count": 0}'),)]),
    logprobs=st.sampled_from([None, 0, 20]),
    logprob_token_ids=st.sampled_from([(), (5,), (9, 9, VOCAB_SIZE - 1), tuple(range(200))]),
    prompt_logprobs=st.sampled_from([None, 0, 20]),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(sampling=SAMPLINGS, length=st.sampled_from([1, 2, 33]))
def test_any_parameters_end_and_change_nothing_for_others(
    engine: Engine, undisturbed: dict[int, list[SequenceDelta]], sampling: SamplingParameters, length: int
) -> None:
    request = GenerationRequest("r", random_prompts(length)[0], sampling)
    try:
        validate(request, LIMITS)
    except InvalidRequest:
        return
    found = run(engine, {7: request, **neighbours()})
    assert found[7][-1].error is None
    assert all(0 <= token_id < VOCAB_SIZE for token_id in tokens(found[7]))
    for key, deltas in undisturbed.items():
        assert tokens(found[key]) == tokens(deltas)


def drafter_of(undisturbed: dict[int, list[SequenceDelta]], drafts: bool) -> ReplayingDrafter | None:
    """Returns a drafter whose drafts for the neighbors are mostly right, or None."""
    drafter = ReplayingDrafter(VOCAB_SIZE - 1)
    drafter.know([*neighbours().values()], [[tokens(undisturbed[key])] for key in neighbours()])
    return drafter if drafts else None


# No valid request fails. For a row to fail, validation would have to let one of these through:
BROKEN: dict[str, dict[str, Any]] = {
    "added": {"logit_bias": ((10**6, 1.0),)},
    "penalised": {"presence_penalty": 1.0, "logit_bias": ((-1, 1.0),)},
    "allowed": {"allowed_token_ids": (-1,)},
    "thinking": {"thinking_token_budget": 1, "reasoning": ReasoningMarks((), (VOCAB_SIZE,))},
    "processed": {"logits_processors": (LogitsProcessorCall("no.such.Class"),)},
    "forbidden": {"allowed_token_ids": (5,), "bad_words": ((5,),)},
    "scored by name": {"logprob_token_ids": (VOCAB_SIZE,)},
    "scored": {"logprobs": 10**4},
    "prompt scored": {"prompt_logprobs": 10**4},
    "nothing left": {"stop_token_ids": tuple(range(VOCAB_SIZE)), "min_tokens": 3},
}


@pytest.mark.parametrize("drafts", [False, True])
def test_rows_that_cannot_be_sampled_fail_alone(
    folder: Path, undisturbed: dict[int, list[SequenceDelta]], drafts: bool
) -> None:
    """Faults exceed the number of steps that may fail in a row; the cache is kept, and neighbors get their tokens."""
    broken = {
        7 + index: GenerationRequest(fault, random_prompts(40)[0], replace(NEIGHBOUR, **BROKEN[fault]))
        for index, fault in enumerate([*BROKEN, *BROKEN])
    }
    with running_engine(folder, drafter=drafter_of(undisturbed, drafts)) as engine:
        run(engine, neighbours())
        found = run(engine, {**neighbours(), **broken})
    for key, request in broken.items():
        error = found[key][-1].error
        assert error is not None, request.request_id
        assert error.reason == "REQUEST_FAULT"
    for key, deltas in undisturbed.items():
        assert tokens(found[key]) == tokens(deltas)
    usage = found[1][-1].usage
    assert usage is not None
    assert usage.cached_prompt_tokens == 32


@pytest.mark.parametrize("drafts", [False, True])
def test_a_row_that_the_model_cannot_run_fails_alone(
    folder: Path, undisturbed: dict[int, list[SequenceDelta]], monkeypatch: pytest.MonkeyPatch, drafts: bool
) -> None:
    """Faults exceed the number of steps that may fail in a row, in prompts of several steps and during decoding."""
    theirs = {token for key, deltas in undisturbed.items() for token in (*PROMPTS[key], *tokens(deltas))}
    bad, forward = max({*range(VOCAB_SIZE)} - theirs), Decoder.forward

    def refuse(self: Decoder, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if bad in token_ids:
            raise ValueError("kernel")
        return forward(self, token_ids, *rest)

    prompt = [token % bad for token in random_prompts(40)[0]]
    decoding = replace(NEIGHBOUR, logit_bias=((bad, 100.0),), temperature=0.0, min_tokens=0)
    broken = [*([*prompt[:length], bad, *prompt[length:]] for length in (0, 1, 20, 39)), prompt]
    with running_engine(
        folder, max_num_batched_tokens=48, drafter=drafter_of(undisturbed, drafts),
        enforce_eager=True,  # replayed steps would not call `refuse`
    ) as engine:  # fmt: skip
        run(engine, neighbours())
        monkeypatch.setattr(Decoder, "forward", refuse)
        found = run(
            engine,
            {**neighbours(), **{7 + key: GenerationRequest("r", p, decoding) for key, p in enumerate(broken)}},
        )
        for prompt in broken:  # with no healthy request beside it
            (alone,) = run(engine, {0: GenerationRequest("r", prompt, decoding)}).values()
            assert getattr(alone[-1].error, "reason", None) == "REQUEST_FAULT"
    for key in range(7, 7 + len(broken)):
        error = found[key][-1].error
        assert error is not None
        assert error.reason == "REQUEST_FAULT"
        assert "ValueError" in error.message
        assert "kernel" not in error.message
    assert tokens(found[7 + len(broken) - 1]) == [bad]
    for key, deltas in undisturbed.items():
        assert tokens(found[key]) == tokens(deltas)
    usage = found[1][-1].usage
    assert usage is not None
    assert usage.cached_prompt_tokens == 32


def test_what_no_row_can_run_is_no_rows_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_engine(folder, enforce_eager=True) as engine:  # replayed steps would not call `refuse`

        def refuse(*arguments: Any) -> torch.Tensor:
            raise RuntimeError("device lost")

        monkeypatch.setattr(Decoder, "forward", refuse)
        found = run(engine, neighbours())
        assert {getattr(deltas[-1].error, "reason", None) for deltas in found.values()} == {"ENGINE_FAULT"}


def test_rows_are_sampled_apart_from_logits_that_are_whole() -> None:
    """After a batch raised with penalties and biases already applied, these are not applied a second time."""
    plans = [
        sampling_plan(temperature=0.0, frequency_penalty=1.0, logit_bias=((1, 0.5),)),
        sampling_plan(temperature=0.0, logprobs=10**4),
        sampling_plan(temperature=0.0, suppress_token_ids=(0,), min_tokens=9),
    ]
    logits = torch.tensor([2.0, 1.9, 0.0]).repeat(3, 1)
    sampler = Sampler(3, 3, torch.device("cpu"))
    for slot, plan in enumerate(plans):
        sampler.add(slot, plan, [2, 0], 1)
    outputs, failed = sample_rows(sampler, logits.clone(), SampledRows([0, 1, 2], [2, 2, 2]))
    assert {slot: int(output.token_ids[0]) for output in outputs for slot in output.rows.slots} == {0: 1, 2: 1}
    assert list(failed) == [1]
    outputs, failed = sample_rows(sampler, logits[:2].clone(), SampledRows([0, 2], [3, 3]))
    assert [output.token_ids.tolist() for output in outputs] == [[1, 1]]
    assert not failed


def test_a_device_that_is_lost_is_no_rows_fault() -> None:
    sampler = Sampler(2, 3, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="meta"):
        sample_rows(sampler, torch.zeros(2, 3, device="meta"), SampledRows([0, 1], [1, 1]))


def test_a_fault_while_warming_up_stops_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Decoder.forward

    def refuse(self: Decoder, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(token_ids) > 1:
            raise torch.OutOfMemoryError
        return forward(self, token_ids, *rest)

    monkeypatch.setattr(Decoder, "forward", refuse)
    with pytest.raises(torch.OutOfMemoryError), running_engine(folder):
        pass
