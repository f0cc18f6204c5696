"""Whoever follows the masks of a backend at random says what the constraint allows, or the backend has refused it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import lark
import numpy as np
import pytest

from benchmarks.constraint_cases import GRAMMARS, REGEXES, SCHEMAS, generated_schemas
from quire.errors import InvalidRequest
from quire.structured.base import Backend, ConstraintRequest, Form, Matcher, mask_words
from quire.structured.registry import make_backend
from quire.structured.vocabulary import Vocabulary, make_vocabulary
from quire.tokenizer.files import read_tokenizer_files

WALKS = 3
MOST_TOKENS = 150
# How many of the constraints each backend must be able to say; the others it refuses.
LEAST = {"guidance": 95, "xgrammar": 70, "outlines": 40}


@cache
def vocabulary() -> Vocabulary:
    return make_vocabulary(read_tokenizer_files(Path(str(resources.files("demo_model") / "quire-demo"))))


@cache
def backend(name: str) -> Backend:
    return make_backend(name, vocabulary())


def of_schema(schema: Any, text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))


def of_regex(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def of_grammar(grammar: str, text: str) -> bool:
    try:
        lark.Lark(grammar).parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def cases() -> list[tuple[ConstraintRequest, Callable[[str], bool]]]:
    schemas = [*SCHEMAS, *generated_schemas(30, seed=1)]
    return [
        *((ConstraintRequest(Form.JSON_SCHEMA, json.dumps(schema)), partial(of_schema, schema)) for schema in schemas),
        *((ConstraintRequest(Form.REGEX, pattern), partial(of_regex, pattern)) for pattern in REGEXES),
        *((ConstraintRequest(Form.GRAMMAR, grammar), partial(of_grammar, grammar)) for grammar in GRAMMARS),
    ]


def said(matcher: Matcher, choose: random.Random) -> str | None:
    """What somebody says who follows the masks; None where it does not come to an end."""
    row = np.zeros(mask_words(vocabulary().size), np.int32)
    text = b""
    for _ in range(MOST_TOKENS):
        matcher.fill(row)
        may_follow = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        assert not matcher.error
        if matcher.is_complete and (not len(may_follow) or choose.random() < 0.3):
            return text.decode(errors="replace")  # as the tokenizer service does
        assert len(may_follow), f"nothing can follow {text!r}"
        token_id = int(choose.choice(may_follow))
        assert matcher.accept([token_id]) == 1
        text += vocabulary().tokens[token_id]
    return None


@pytest.mark.parametrize("name", LEAST)
def test_all_that_is_said_is_valid(name: str) -> None:
    taken = ended = 0
    for request, holds in cases():
        try:
            grammar = backend(name).read(backend(name).compile(request))
        except InvalidRequest:
            continue
        taken += 1
        for seed in range(WALKS):
            text = said(grammar.matcher(), random.Random(seed))
            if text is not None:
                ended += 1
                assert holds(text), f"{text!r} is not what {name} was asked for: {request.text}"
    assert taken >= LEAST[name]
    assert ended > 2 * taken
