"""Constraints over gRPC: a worker that has found its tokenizer follows them, and refuses invalid ones."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from quire.errors import FailedPrecondition, InvalidRequest
from quire.options.model import ModelOptions
from quire.structured.base import MAX_GRAMMAR_BYTES, Constraint
from quire.v1 import common_pb2
from tests.support.engine_client import generate, generation, refusal, wait_free
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.grammars import FOLDER, PERSON, VOCABULARY_SIZE, following, is_person, matching, text_of


def message(constraint: Constraint, **changes: str) -> common_pb2.Constraint:
    fields = {"backend": constraint.backend, "grammar": constraint.grammar, "key": constraint.key}
    return common_pb2.Constraint(**(fields | changes))


@pytest.fixture
async def engine() -> AsyncIterator[RunningEngine]:
    model = ModelOptions(model=str(FOLDER))
    async with running_engine(FakeExecutor(VOCABULARY_SIZE), model, generation_config="auto") as running:
        yield running


@pytest.mark.parametrize("n", [1, 3])
async def test_outputs_follow_their_constraint(engine: RunningEngine, n: int) -> None:
    for seed in range(3):
        fields = {"max_tokens": 200, "temperature": 1.0, "seed": seed, "n": n}
        deltas = await generate(engine, generation([7, seed], constraint=message(following(PERSON)), **fields))
        tokens: dict[int, list[int]] = {}
        for delta in deltas:
            tokens.setdefault(delta.choice_index, []).extend(delta.token_ids)
        assert [is_person(text_of(tokens[choice])) for choice in range(n)] == [True] * n
        assert deltas[-1].finish_reason == common_pb2.FINISH_REASON_STOP
    await wait_free(engine)


async def test_the_thinking_is_free(engine: RunningEngine) -> None:
    marks = common_pb2.ReasoningMarks(end_token_ids=[9], is_open=True)
    deltas = await generate(
        engine,
        generation([3], constraint=message(matching("[ab]{9}")), max_tokens=300, logit_bias={9: 5}, reasoning=marks),
    )
    tokens = [token for delta in deltas for token in delta.token_ids]
    if 9 in tokens:
        assert re.fullmatch("[ab]{9}", text_of(tokens[tokens.index(9) + 1 :]))
    else:
        assert len(tokens) == 300


@pytest.mark.parametrize(
    ("constraint", "word"), [
        (message(matching("a"), key="another"), "constraint.key"),
        (message(matching("a"), backend="nonsense"), "'nonsense'"),
        (message(Constraint.of("guidance", b"start: nothing")), "unknown name"),
        (message(Constraint.of("guidance", b"x" * (MAX_GRAMMAR_BYTES + 1))), "bytes"),
        (message(Constraint.of("guidance", b" " * 2**20)), "bytes"),
    ], ids=["key", "backend", "grammar", "size", "size_of_the_backend"],
)  # fmt: skip
async def test_what_cannot_be_followed_is_refused_with_a_message(
    engine: RunningEngine, constraint: common_pb2.Constraint, word: str
) -> None:
    error = await refusal(engine, generation([1], constraint=constraint))
    assert isinstance(error, InvalidRequest)
    assert word in error.message


async def test_a_worker_without_a_tokenizer_refuses_and_says_how_to_give_it_one() -> None:
    async with running_engine() as engine:
        error = await refusal(engine, generation([1], constraint=message(matching("a"))))
        assert isinstance(error, FailedPrecondition)
        assert "--tokenizer" in error.message
        assert await generate(engine, generation([1], max_tokens=3))
