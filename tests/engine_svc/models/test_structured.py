"""Random models under constraints, combined with other request options: what has finished is valid."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from engine_svc.structured.grammars import Grammars
from quire.errors import InvalidRequest
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint
from tests.quire.structured.test_validity import cases
from tests.support.grammars import (
    EOS,
    PERSON,
    VOCABULARY_SIZE,
    compiled,
    following,
    is_person,
    make_grammars,
    matching,
    spell,
    text_of,
    vocabulary,
)
from tests.support.run_engine import Output, run_requests, running_engine
from tests.support.tiny_models import make_model

PROMPT = spell("Give me a person.")
PARTS: list[dict[str, Any]] = [
    {"logit_bias": ((spell("}")[0], -100.0), (spell("x")[0], 100.0))}, {"presence_penalty": 2.0},
    {"repetition_penalty": 1.9, "frequency_penalty": -2.0}, {"min_tokens": 12}, {"top_k": 3}, {"top_p": 0.4},
    {"min_p": 0.3}, {"logprobs": 2}, {"ignore_eos": True}, {"stop_token_ids": (1,)}, {"n": 3},
]  # fmt: skip


def is_json(text: str) -> bool:
    json.loads(text)
    return True


def is_list(text: str) -> bool:
    return all(isinstance(each, int) for each in json.loads(text))


SHAPES: dict[str, tuple[Constraint, Callable[[str], object]]] = {
    "person": (following(PERSON), is_person),
    "anything": (following({}), is_json),
    "object": (following({"type": "object"}), lambda text: isinstance(json.loads(text), dict)),
    "list": (following({"type": "array", "items": {"type": "integer"}}), is_list),
    "pattern": (matching(r"(yes|no), [A-Z][a-zé]{2,9}!"), re.compile(r"(yes|no), [A-Z][a-zé]{2,9}!").fullmatch),
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = make_grammars()
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama-untied", vocab_size=VOCABULARY_SIZE)


def requests(count: int) -> list[tuple[str, GenerationRequest]]:
    choose, found = random.Random(0), []
    for number in range(count):
        shape = choose.choice([*SHAPES])
        fields: dict[str, Any] = {"temperature": choose.choice([0.0, 1.0, 1.5]), "max_tokens": 90, "seed": number}
        for part in choose.sample(PARTS, choose.randrange(4)):
            fields |= part
        prompt = [*PROMPT, number]
        found.append((shape, GenerationRequest("r", prompt, SamplingParameters(**fields), constraint=SHAPES[shape][0])))
    return found


def run(folder: Path, wanted: list[GenerationRequest], grammars: Grammars, **options: Any) -> list[list[Output]]:
    with running_engine(folder, eos_token_ids=(EOS,), grammars=grammars, **options) as engine:
        return run_requests(engine, wanted)


@pytest.mark.parametrize(
    "options", [{}, {"distributed_executor_backend": "mp"}, {"tensor_parallel_size": 2, "num_blocks": 40}],
    ids=["uni", "async", "two_ranks_and_few_blocks"],
)  # fmt: skip
def test_all_that_has_finished_is_valid(folder: Path, grammars: Grammars, options: dict[str, Any]) -> None:
    wanted = requests(48)
    found = run(folder, [request for _, request in wanted], grammars, **options)
    finished = 0
    for (shape, request), choices in zip(wanted, found, strict=True):
        for output in choices:
            if output.finish_reason is FinishReason.STOP:
                text = text_of(output.token_ids)
                finished += 1
                assert SHAPES[shape][1](text), (text, request.sampling)
            else:
                assert output.finish_reason is FinishReason.LENGTH
                assert len(output.token_ids) == 90
            if request.sampling.logprobs is not None:
                assert len(output.logprobs) == len(output.token_ids)
    assert finished > 40


def test_other_libraries_find_all_kinds_of_constraints_kept(folder: Path, grammars: Grammars) -> None:
    wanted, checks = [], []
    for number, (asked, holds) in enumerate(cases()):
        with contextlib.suppress(InvalidRequest):  # the tokenizer service would have refused it
            sampling = SamplingParameters(temperature=1.5, max_tokens=100, seed=number)
            wanted.append(GenerationRequest("r", [*PROMPT, number], sampling, constraint=compiled(asked)))
            checks.append(holds)
    assert len(wanted) > 90
    found = run(folder, wanted, grammars, num_blocks=600, max_num_seqs=64)
    ended = [
        (request, holds, b"".join(vocabulary().tokens[each] for each in choice.token_ids if each != EOS))
        for request, holds, (choice,) in zip(wanted, checks, found, strict=True)
        if choice.finish_reason is FinishReason.STOP
    ]
    assert len(ended) > 80
    for request, holds, text in ended:
        assert holds(text.decode(errors="replace")), (request.constraint, text)


def test_alone_in_a_batch_and_on_another_worker_it_is_the_same(folder: Path, grammars: Grammars) -> None:
    wanted = [request for _, request in requests(12)]
    together = run(folder, wanted, grammars)
    for request, choices in list(zip(wanted, together, strict=True))[::4]:
        (alone,) = run(folder, [request], grammars)
        assert [output.token_ids for output in alone] == [output.token_ids for output in choices]
        cut = max(1, min(len(output.token_ids) for output in choices) - 2)
        progress = tuple(ChoiceProgress(output.token_ids[:cut]) for output in choices)
        moved = GenerationRequest("r", request.prompt_token_ids, request.sampling, constraint=request.constraint,
                                  progress=progress)  # fmt: skip
        (rest,) = run(folder, [moved], grammars)
        for before, after, whole in zip(progress, rest, choices, strict=True):
            assert before.token_ids + after.token_ids == whole.token_ids
            assert after.finish_reason is whole.finish_reason


@pytest.mark.parametrize("name", ["bad_words", "allowed_token_ids"])
def test_what_is_left_no_token_fails_alone(folder: Path, grammars: Grammars, name: str) -> None:
    beginnings = tuple((each,) for each, token in enumerate(vocabulary().tokens) if token and b"abc".startswith(token))
    left: Any = {"bad_words": beginnings, "allowed_token_ids": (EOS,)}
    forbidden = SamplingParameters(temperature=0.0, max_tokens=20, **{name: left[name]})
    torn = GenerationRequest("r", PROMPT, forbidden, constraint=matching("abc"))
    whole = GenerationRequest("r", PROMPT, SamplingParameters(max_tokens=20), constraint=matching("abc"))
    with running_engine(folder, eos_token_ids=(EOS,), grammars=grammars) as engine:
        engine.add(1, torn)
        engine.add(2, whole)
        last: dict[int, SequenceDelta] = {}
        while len(last) < 2:
            last |= {delta.key: delta for delta in engine.step() if delta.is_final}
    error = last[1].error
    assert isinstance(error, InvalidRequest)  # the request itself is at fault
    assert error.parameter == name
    assert last[2].finish_reason is FinishReason.STOP


def test_log_probabilities_are_of_the_unconstrained_model(folder: Path, grammars: Grammars) -> None:
    sampling = SamplingParameters(temperature=0.0, max_tokens=1, logprobs=1)
    free, bound = (
        GenerationRequest("r", PROMPT, sampling, constraint=constraint) for constraint in (None, SHAPES["person"][0])
    )
    (plain,), (constrained,) = run(folder, [free, bound], grammars)
    assert plain.logprobs[0].token_ids[1] == constrained.logprobs[0].token_ids[1] == plain.token_ids[0]
    assert constrained.token_ids[0] != plain.token_ids[0]
    assert constrained.logprobs[0].rank > 1
