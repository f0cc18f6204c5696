"""The contract of every structured output backend: following its masks at random ends in a valid text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.errors import FailedPrecondition, InvalidRequest
from quire.structured.base import (
    Backend,
    Constraint,
    ConstraintRequest,
    Form,
    Inexpressible,
    Matcher,
    constraint_key,
    mask_words,
)
from quire.structured.registry import BACKENDS, make_backend
from quire.structured.vocabulary import Vocabulary, make_vocabulary
from quire.tokenizer.files import read_tokenizer_files

PADDED = 4100  # a few more ids than the tokenizer has
MOST_TOKENS = 400
every = pytest.mark.parametrize("name", BACKENDS)


@cache
def vocabulary() -> Vocabulary:
    folder = Path(str(resources.files("demo_model") / "quire-demo"))
    return make_vocabulary(read_tokenizer_files(folder), PADDED)


@cache
def backend(name: str) -> Backend:
    return backend_over(name, vocabulary())


def backend_over(name: str, known: Vocabulary) -> Backend:
    try:
        return make_backend(name, known)
    except FailedPrecondition as error:
        pytest.skip(error.message)


def is_json(check: Callable[[Any], bool]) -> Callable[[str], bool]:
    def parses(text: str) -> bool:
        return check(json.loads(text))

    return parses


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


@dataclass(frozen=True)
class Case:
    """A constraint, a text that meets it, and a predicate true of every such text."""

    request: ConstraintRequest
    text: str
    holds: Callable[[str], bool]


def schema(value: Any, **switches: bool) -> ConstraintRequest:
    return ConstraintRequest(Form.JSON_SCHEMA, json.dumps(value), **switches)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip
CASES = {
    "object": Case(
        schema(PERSON),
        '{"name": "Ada", "age": 36}',
        is_json(lambda found: set(found) == {"name", "age"} and 0 <= found["age"] <= 150 and len(found["name"]) <= 12),
    ),
    "compact": Case(
        schema(PERSON, disable_any_whitespace=True),
        '{"name":"Ada","age":36}',
        lambda text: (
            text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) or "\\" in text
        ),  # an escape that Python would not write
    ),
    "array": Case(
        schema({"type": "array", "items": {"enum": ["a", "bc", 7, None]}, "minItems": 1, "maxItems": 5}),
        '["a", 7, null]',
        is_json(lambda found: 1 <= len(found) <= 5 and all(each in ("a", "bc", 7, None) for each in found)),
    ),
    "regex": Case(
        ConstraintRequest(Form.REGEX, r"[a-f0-9]{8}-[a-f0-9]{4}"), "0123abcd-9f0e", matches(r"[a-f0-9]{8}-[a-f0-9]{4}")
    ),
    "choices": Case(
        ConstraintRequest(Form.CHOICES, choices=("yes", "no", 'say "yes"\n')),
        'say "yes"\n',
        lambda text: text in ("yes", "no", 'say "yes"\n'),
    ),
    "choices that begin others": Case(
        ConstraintRequest(Form.CHOICES, choices=("yes", "yes, please", "yes, please!")),
        "yes, please",
        matches("yes(, please!?)?"),
    ),
    "optional end": Case(ConstraintRequest(Form.REGEX, "a(bcd)*(b|bc)?"), "abcdbc", matches("a(bcd)*(b|bc)?")),
    "ten thousand choices": Case(
        ConstraintRequest(Form.CHOICES, choices=tuple(f"word {number}" for number in range(10_000))),
        "word 9871",
        matches("word [0-9]{1,4}"),
    ),
}
cases = pytest.mark.parametrize("case", CASES)


def allowed(matcher: Matcher) -> set[int]:
    row = np.full(mask_words(PADDED), -1, np.int32)
    matcher.fill(row)
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def compiled(name: str, request: ConstraintRequest) -> bytes:
    try:
        return backend(name).compile(request)
    except Inexpressible as error:
        pytest.skip(error.message)


def follow(name: str, request: ConstraintRequest) -> Matcher:
    return backend(name).read(compiled(name, request)).matcher()


def walk(matcher: Matcher, choose: random.Random) -> list[int]:
    """Chooses allowed tokens at random until none can follow, or the text is complete and a coin flip ends it."""
    token_ids: list[int] = []
    while not matcher.is_stopped and len(token_ids) < MOST_TOKENS:
        may_follow = allowed(matcher)
        if matcher.is_complete and (not may_follow or choose.random() < 0.5):
            break
        token_ids.append(choose.choice(sorted(may_follow)))
        assert matcher.accept(token_ids[-1:]) == 1, matcher.error
    return token_ids


def text_of(token_ids: list[int]) -> str:
    return b"".join(vocabulary().tokens[token_id] for token_id in token_ids).decode()


@every
@cases
def test_what_follows_the_masks_is_valid(name: str, case: str) -> None:
    grammar = backend(name).read(compiled(name, CASES[case].request))
    finished = 0
    for seed in range(20):
        matcher = grammar.matcher()
        token_ids = walk(matcher, random.Random(seed))
        if matcher.is_complete:
            finished += 1
            assert CASES[case].holds(text_of(token_ids)), text_of(token_ids)
    assert finished


@every
@cases
def test_a_valid_text_can_be_said_in_the_tokenizers_own_tokens(name: str, case: str) -> None:
    matcher = follow(name, CASES[case].request)
    for token_id in vocabulary().encode(CASES[case].text.encode()):
        assert token_id in allowed(matcher)
        assert matcher.accept([token_id]) == 1
    assert matcher.is_complete


@every
@cases
def test_masks_have_neither_special_tokens_nor_ids_of_no_meaning(name: str, case: str) -> None:
    matcher = follow(name, CASES[case].request)
    for token_id in vocabulary().encode(CASES[case].text.encode()):
        found = allowed(matcher)
        assert not found & vocabulary().special_token_ids
        assert not found & {each for each, token in enumerate(vocabulary().tokens) if not token}
        matcher.accept([token_id])
    assert not allowed(matcher) & vocabulary().special_token_ids, "the end of a sequence is for the engine to allow"


@every
@pytest.mark.parametrize("eos", [0, 31, 32, 63, 64])
def test_the_end_of_sequence_is_in_no_mask_whatever_its_id(name: str, eos: int) -> None:
    letters = [bytes([byte]) for byte in range(97, 97 + 26)] * 3
    small = Vocabulary((*letters[:eos], b"<end>", *letters[eos:70]), frozenset([eos]), (eos,))
    found = backend_over(name, small)
    matcher = found.read(found.compile(ConstraintRequest(Form.REGEX, "a*"))).matcher()
    row = np.full(mask_words(small.size), -1, np.int32)
    for _ in range(2):
        matcher.fill(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        allowed_ids = set(np.nonzero(bits)[0].tolist())
        assert allowed_ids
        assert {small.tokens[token_id] for token_id in allowed_ids} == {b"a"}
        assert matcher.is_complete
        matcher.accept([min(allowed_ids)])


@every
def test_a_model_without_an_end_of_sequence_can_say_all_that_it_has_tokens_for(name: str) -> None:
    small = Vocabulary((b"!", b"a", b"b", b""), frozenset(), ())
    found = backend_over(name, small)
    matcher = found.read(found.compile(ConstraintRequest(Form.REGEX, "[!a]{2,4}"))).matcher()
    for _ in range(3):
        row = np.full(mask_words(small.size), -1, np.int32)
        matcher.fill(row)
        assert row.tolist() == [0b11]
        assert matcher.accept([0]) == 1
    assert matcher.is_complete
    assert not matcher.is_stopped


@every
def test_matchers_of_a_grammar_go_their_own_ways(name: str) -> None:
    grammar = backend(name).read(compiled(name, CASES["regex"].request))
    matcher, other = grammar.matcher(), grammar.matcher()
    before = allowed(matcher)
    other.accept(vocabulary().encode(b"0123abcd"))
    assert allowed(matcher) == before != allowed(other)


@every
def test_a_token_that_does_not_fit_is_refused_and_counted(name: str) -> None:
    matcher = follow(name, CASES["regex"].request)
    fitting = vocabulary().encode(b"0123abcd")
    wrong = vocabulary().encode(b"xyz")
    assert matcher.accept([*fitting, *wrong]) == len(fitting)
    assert not matcher.is_complete


@every
def test_what_was_accepted_can_be_taken_back(name: str) -> None:
    matcher = follow(name, CASES["object"].request)
    token_ids = vocabulary().encode(CASES["object"].text.encode())
    masks = []
    for token_id in token_ids[:-1]:
        masks.append(allowed(matcher))
        matcher.accept([token_id])
    for count in range(1, len(masks) + 1):
        matcher.roll_back(1)
        assert allowed(matcher) == masks[-count]
    assert matcher.accept(token_ids) == len(token_ids)


@every
def test_sequences_of_a_grammar_know_nothing_of_each_other(name: str) -> None:
    grammar = backend(name).read(compiled(name, CASES["object"].request))
    first, second = grammar.matcher(), grammar.matcher()
    beginning = allowed(second)
    first.accept(vocabulary().encode(b'{"name": "'))
    assert allowed(second) == beginning == allowed(grammar.matcher())
    assert allowed(first) != beginning


@every
def test_whitespace_comes_to_an_end(name: str) -> None:
    """The number of blanks in a row is limited, so a model that keeps indenting has to go on."""
    matcher = follow(name, CASES["object"].request)
    matcher.accept(vocabulary().encode(b"{"))
    blank = {each for each, token in enumerate(vocabulary().tokens) if token and not token.strip()}
    for _ in range(200):
        spaces = allowed(matcher) & blank
        if not spaces:
            break
        matcher.accept([min(spaces)])
    assert not allowed(matcher) & blank
    assert allowed(matcher)


@every
@pytest.mark.parametrize(
    "request_", [
        ConstraintRequest(Form.JSON_SCHEMA, "{"), ConstraintRequest(Form.JSON_SCHEMA, '{"type": "strng"}'),
        ConstraintRequest(Form.REGEX, "a["),
    ], ids=["half", "no_type", "regex"],
)  # fmt: skip
def test_what_is_malformed_is_refused_with_a_message(name: str, request_: ConstraintRequest) -> None:
    with pytest.raises(InvalidRequest, match=r"\w"):
        backend(name).compile(request_)


@every
@pytest.mark.parametrize("grammar", [b"", b"\xff\xfe\x00", b"{" * 5000, b"[]"], ids=["empty", "binary", "deep", "list"])
def test_bytes_that_are_no_grammar_are_refused(name: str, grammar: bytes) -> None:
    with pytest.raises(InvalidRequest):
        backend(name).read(grammar)


def test_a_key_is_made_of_the_grammar_and_its_backend() -> None:
    constraint = Constraint.of("guidance", b"start: /a/")
    assert constraint.key == constraint_key("guidance", b"start: /a/")
    assert len(constraint.key) <= 64
    assert (
        len({constraint.key, Constraint.of("guidance", b"start: /b/").key, Constraint.of("x", b"start: /a/").key}) == 3
    )


def test_a_backend_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'nonsense' does not exist; choose one of guidance"):
        make_backend("nonsense", vocabulary())


def test_guidance_follows_thousands_of_alternatives() -> None:
    alternatives = [
        {"type": "object", "required": ["name"], "properties": {"name": {"const": f"n{n}"}}} for n in range(3000)
    ]
    matcher = follow("guidance", schema({"anyOf": alternatives}))
    for token_id in vocabulary().encode(b'{"name": "n2987"}'):
        assert token_id in allowed(matcher)
        assert matcher.accept([token_id]) == 1
    assert matcher.is_complete
