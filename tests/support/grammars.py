"""Constraints over the bundled model's vocabulary, as engines get them."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from engine_svc.structured.grammars import Grammars
from quire.structured.base import Constraint, ConstraintRequest, Form
from quire.structured.guidance import GuidanceBackend
from quire.structured.vocabulary import Vocabulary, make_vocabulary
from quire.tokenizer.files import read_tokenizer_files

FOLDER = Path(str(resources.files("demo_model") / "quire-demo"))
VOCABULARY_SIZE = 4100  # a few ids more than the tokenizer knows
EOS = 2
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@cache
def vocabulary() -> Vocabulary:
    return make_vocabulary(read_tokenizer_files(FOLDER), VOCABULARY_SIZE, [EOS])


@cache
def _backend() -> GuidanceBackend:
    return GuidanceBackend(vocabulary())


def following(schema: Any) -> Constraint:
    """JSON that a schema allows."""
    return compiled(ConstraintRequest(Form.JSON_SCHEMA, json.dumps(schema)))


def matching(pattern: str) -> Constraint:
    """A text that a regular expression matches."""
    return compiled(ConstraintRequest(Form.REGEX, pattern))


def compiled(request: ConstraintRequest) -> Constraint:
    """
    Raises:
        InvalidRequest: guidance cannot follow it.
    """
    return Constraint.of("guidance", _backend().compile(request))


def make_grammars() -> Grammars:
    return Grammars(VOCABULARY_SIZE, vocabulary)


def spell(text: str) -> list[int]:
    """The tokens of a text."""
    return vocabulary().encode(text.encode())


def text_of(token_ids: list[int]) -> str:
    """The text of tokens, without special ones."""
    known = vocabulary()
    return b"".join(known.tokens[each] for each in token_ids if each not in known.special_token_ids).decode()


def is_person(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"name", "age"} and len(found["name"]) <= 8 and 0 <= found["age"] <= 99
