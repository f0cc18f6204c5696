"""JSON objects from a description of their fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from demo_model.corpus.example import Probe, Turn, fill, pick, user
from demo_model.corpus.words import name, word

_CITIES = "Paris Rome Oslo Lima Cairo Berlin Madrid Tokyo Boston Vienna Prague Dublin".split()
_FIELDS: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "name": ("string", name),
    "age": ("number", lambda random: random.randint(1, 99)),
    "city": ("string", lambda random: random.choice(_CITIES)),
    "country": ("string", lambda random: random.choice(["France", "Italy", "Japan", "Peru", "Kenya", "Norway"])),
    "color": ("string", lambda random: random.choice("red blue green black white".split())),
    "price": ("number", lambda random: random.randint(1, 500)),
    "count": ("number", lambda random: random.randint(0, 50)),
    "year": ("number", lambda random: random.randint(1950, 2030)),
    "active": ("boolean", lambda random: random.random() < 0.5),
    "title": ("string", lambda random: f"{word(random)} {word(random)}".capitalize()),
    "email": ("string", lambda random: f"{word(random)}@{word(random)}.com"),
    "tags": ("list", lambda random: [word(random) for _ in range(random.randint(2, 3))]),
    "animal": ("string", lambda random: random.choice("cat dog horse bird fish".split())),
    "id": ("number", lambda random: random.randint(1, 9999)),
}
_KINDS: dict[str, Callable[[Random], Any]] = {
    "string": word,
    "number": lambda random: random.randint(0, 99),
    "boolean": lambda random: random.random() < 0.5,
    "list": lambda random: [word(random) for _ in range(random.randint(2, 3))],
}
_FOR = "[. Use |: |, using |. Values: |. The values are | for | from |. Take | and the values | with ]{v}[.|]"
_TYPED = (
    "[|Please |Now |Can you |I want you to ][write|make|produce|return|create|build|print|give me|answer with|take] "
    "[JSON|a JSON object|one JSON object|an object in JSON|some JSON] "
    "[with|with the fields|with the keys|having|having the keys|that has|of|using the keys] {f}" + _FOR,
    "[I need|I want] [JSON|a JSON object|an object] [with|with the keys|having the fields|that has] {f}" + _FOR,
    "[Answer|Write] in JSON[| with the keys| using the fields| having] {f}" + _FOR,
    "JSON[:| of| with] {f}" + _FOR,
)
_HELD_OUT = (
    "Please produce a JSON object having the fields {f}, using {v}.",
    "I need JSON with the fields {f}. Take {v}.",
)


def json_object(random: Random) -> Sequence[Turn]:
    """A description with values, and the object."""
    value = _object(random)
    question = fill(random, _TYPED, _described(random, value))
    return [Turn(question, json.dumps(value), f"The keys are {', '.join(value)}.")]


def _object(random: Random) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(random.randint(1, 4)):
        if random.random() < 0.6:
            key = random.choice(list(_FIELDS))
            value[key] = _FIELDS[key][1](random)
        else:
            value[word(random)] = _KINDS[pick(random, "string", "number", "boolean", "list")](random)
    return value


def _described(random: Random, value: dict[str, Any]) -> dict[str, str]:
    with_types = random.random() < 0.5
    fields = [f"{key} ({_type(item)})" if with_types else key for key, item in value.items()]
    values = [", ".join(item) if isinstance(item, list) else str(item).lower() if isinstance(item, bool) else str(item)
              for item in value.values()]  # fmt: skip
    if random.random() < 0.5 and all(not isinstance(item, list) for item in value.values()):
        shown = ", ".join(values)
    else:
        shown = "; ".join(f"{key} {text}" for key, text in zip(value, values, strict=True))
    return {"f": ", ".join(fields), "v": shown}


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "number", list: "list"}[type(value)]


def probe(random: Random) -> Probe:
    """Fields that were never combined so."""
    value = _object(random)
    question = fill(random, _HELD_OUT, _described(random, value))

    def judge(text: str) -> bool:
        try:
            return set(json.loads(text)) == set(value)
        except (ValueError, TypeError):
            return False

    return Probe((user(question),), judge)
