"""Constrained and other requests arrive, are aborted, stopped and preempted in any order; finished ones are valid."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.plan import CacheSize
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import GenerationRequest
from engine_svc.structured.grammars import Grammars
from quire.reasoning import ReasoningMarks
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint
from tests.engine_svc.core.test_engine import Collected
from tests.support.engine_options import engine_options
from tests.support.fake_drafter import FakeDrafter
from tests.support.fake_executor import FakeExecutor
from tests.support.grammars import (
    EOS,
    PERSON,
    VOCABULARY_SIZE,
    following,
    is_person,
    make_grammars,
    matching,
    text_of,
)

REQUESTS = 25
SECONDS = 60.0
STOP, THOUGHT = 1, 9  # token ids that end a sequence, and its thinking
KINDS: list[tuple[Constraint | None, Callable[[str], object]]] = [
    (None, lambda text: True), (following(PERSON), is_person), (matching(""), lambda text: not text),
    (matching("[ab]{1,40}"), re.compile("[ab]{1,40}").fullmatch),
    (matching("(yes|no)+"), re.compile("(yes|no)+").fullmatch),
]  # fmt: skip
PARTS: list[dict[str, Any]] = [
    {"n": 3}, {"min_tokens": 2}, {"ignore_eos": True}, {"stop_token_ids": (STOP,)}, {"max_tokens": 3},
    {"logprobs": 1, "prompt_logprobs": 0}, {"reasoning": ReasoningMarks(end_token_ids=(THOUGHT,), is_open=True)},
]  # fmt: skip


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = make_grammars()
    yield made
    made.close()


def make_engine(choose: random.Random, grammars: Grammars) -> Engine:
    blocks = choose.choice([62, 80, 200])
    executor = FakeExecutor(VOCABULARY_SIZE, 4, verify=True, max_in_flight=choose.choice([1, 2]))
    executor.allocate(CacheSize(blocks))
    return Engine(
        executor,
        engine_options(max_num_seqs=choose.choice([2, 8]), enable_prefix_caching=choose.random() < 0.5),
        EngineFacts(
            num_blocks=blocks, block_size=4, max_model_len=240, max_num_batched_tokens=choose.choice([16, 64]),
            eos_token_ids=frozenset([EOS]),
        ),
        drafter=FakeDrafter(VOCABULARY_SIZE, 3) if choose.random() < 0.3 else None,
        grammars=grammars,
    )  # fmt: skip


def make_request(choose: random.Random) -> tuple[GenerationRequest, Callable[[str], object]]:
    constraint, holds = choose.choice(KINDS)
    fields: dict[str, Any] = {"seed": choose.randrange(99), "max_tokens": choose.choice([30, 120])}
    for part in choose.sample(PARTS, choose.randrange(3)):
        fields |= part
    prompt = [choose.randrange(VOCABULARY_SIZE) for _ in range(choose.choice([1, 5, 40]))]
    return GenerationRequest("r", prompt, SamplingParameters(**fields), constraint=constraint), holds


def answer(token_ids: list[int], sampling: SamplingParameters) -> str | None:
    """Returns the text that the constraint applies to; None if a stop token ended the sequence while thinking."""
    if sampling.reasoning is None:
        return text_of(token_ids)
    if THOUGHT not in token_ids:
        assert token_ids[-1] in sampling.stop_token_ids
        return None
    return text_of(token_ids[token_ids.index(THOUGHT) + 1 :])


@pytest.mark.parametrize("seed", range(12))
def test_all_that_has_ended_is_valid(seed: int, grammars: Grammars) -> None:
    choose, found, until = random.Random(seed), Collected(), time.monotonic() + SECONDS
    engine = make_engine(choose, grammars)
    asked: dict[int, tuple[GenerationRequest, Callable[[str], object]]] = {}
    ended_by_us: set[tuple[int, int]] = set()
    while len(asked) < REQUESTS or len(found.last) < REQUESTS:
        assert time.monotonic() < until
        if len(asked) < REQUESTS and choose.random() < 0.4:
            key = 1000 * seed + len(asked)
            asked[key] = make_request(choose)
            engine.add(key, asked[key][0])
        if asked and choose.random() < 0.1:
            key, choice = choose.choice([*asked]), choose.randrange(3)
            if choose.random() < 0.5:
                engine.abort(key)
                ended_by_us |= {(key, each) for each in range(3)}
            else:
                engine.stop(key, choice, len(found.tokens[key, choice]))
                ended_by_us.add((key, choice))
        found.take(engine.step())
        engine.check()
    for (key, choice), reason in found.reasons.items():
        request, holds = asked[key]
        if reason is FinishReason.STOP and (key, choice) not in ended_by_us:
            text = answer(found.tokens[key, choice], request.sampling)
            assert text is None or holds(text), (text, request)
