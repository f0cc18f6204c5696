"""Tool calls as Hermes models write them, for tools whose names change all the time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from demo_model.corpus.example import Example, Message, Probe, assistant, fill, pick, read_data, user
from demo_model.corpus.guide import greeting, guide
from demo_model.corpus.words import name, word

Maker = Callable[[Random], Any]
_CITIES = "Paris Rome Oslo Lima Cairo Berlin Madrid Tokyo Boston Vienna Prague Dublin Zurich Milan Kyoto Quito".split()


def _city(random: Random) -> str:
    return random.choice(_CITIES) if random.random() < 0.5 else word(random).capitalize()


# What families.yaml names: type in the tool's JSON schema, and how a value is made.
_MAKERS: dict[str, tuple[str, Maker]] = {
    "amount": ("number", lambda random: random.randint(1, 999)),
    "city": ("string", _city),
    "clock_time": ("string", lambda random: f"{random.randint(0, 23)}:{random.randint(10, 59)}"),
    "currency": ("string", lambda random: pick(random, "euro", "dollar", "yen", "peso")),
    "day": ("string", lambda random: pick(random, "Monday", "Tuesday", "Friday", "Sunday")),
    "degrees": ("number", lambda random: random.randint(15, 25)),
    "few": ("number", lambda random: random.randint(1, 9)),
    "heated_room": ("string", lambda random: pick(random, "kitchen", "bedroom", "hall", "bathroom", word(random))),
    "hour": ("number", lambda random: random.randint(0, 23)),
    "language": ("string", lambda random: pick(random, "French", "German", "Spanish", "Polish")),
    "name": ("string", name),
    "path": ("string", lambda random: f"{word(random)}.txt"),
    "phrase": ("string", lambda random: " ".join(word(random) for _ in range(random.randint(1, 3)))),
    "proper": ("string", lambda random: word(random).capitalize()),
    "room": ("string", lambda random: pick(random, "kitchen", "bedroom", "hall", "garden", word(random))),
    "sky": ("string", lambda random: pick(random, "sunny", "cloudy", "rainy")),
    "small": ("number", lambda random: random.randint(1, 60)),
    "status": ("string", lambda random: pick(random, "sent", "lost", "ready")),
    "word": ("string", word),
    "yes": ("boolean", lambda random: True),
}


@dataclass(frozen=True)
class Family:
    """Tools of one purpose. Questions and answers name the parameters and the result's fields."""

    stems: str  # of names
    descriptions: list[str]
    parameters: dict[str, str]  # name → maker
    questions: list[str]
    result: dict[str, str]  # name → maker
    answer: str


@cache
def families() -> list[Family]:
    """All purposes."""
    return [Family(**entry) for entry in read_data("families.yaml")]


def _make(random: Random, fields: dict[str, str]) -> dict[str, Any]:
    return {key: _MAKERS[maker][1](random) for key, maker in fields.items()}


_VERBS = ("get", "find", "do", "run", "fetch", "make", "call", "use", "my", "the")


def _tool_name(random: Random, family: Family, made_up: float) -> str:
    stem = random.choice(family.stems.split())
    kind = pick(random, "word", "word_stem") if random.random() < made_up else pick(random, "stem", "verb")
    return {
        "stem": stem,
        "verb": f"{random.choice(_VERBS)}_{stem}",
        "word": f"{word(random)}_{word(random)}",
        "word_stem": f"{word(random)}_{stem}",
    }[kind]


@dataclass(frozen=True)
class Need:
    """A question, and the call that answers it."""

    family: Family
    name: str
    arguments: dict[str, Any]
    question: str


@dataclass(frozen=True)
class Offer:
    """Tools of different purposes, by name."""

    families: dict[str, Family]
    tools: tuple[Message, ...]

    def need(self, random: Random) -> Need:
        """A question that needs one of them."""
        name, family = random.choice(list(self.families.items()))
        arguments = _make(random, family.parameters)
        return Need(family, name, arguments, fill(random, family.questions, arguments))


def offer(random: Random, made_up: float) -> Offer:
    """One to four tools; so many of the names are made up."""
    chosen = random.sample(families(), pick(random, 1, 2, 2, 3, 3, 4))
    by_name = {_tool_name(random, family, made_up): family for family in chosen}
    return Offer(by_name, tuple(_tool(random, name, family) for name, family in by_name.items()))


def _tool(random: Random, name: str, family: Family) -> Message:
    properties = {key: {"type": _MAKERS[maker][0]} for key, maker in family.parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": random.choice(family.descriptions),
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tool_use(random: Random, late: bool) -> Example:
    """Questions and calls, with or without their results and answers; sometimes a question that needs no tool."""
    offered = offer(random, made_up=0.9 if late else 0.33)
    thinking = random.random() < 0.15
    messages: list[Message] = []
    for _ in range(pick(random, 1, 1, 2, 3)):
        if random.random() < 0.12:
            (turn,) = pick(random, greeting, guide)(random)
            messages += [user(turn.question), assistant(turn.answer, turn.thought if thinking else "")]
        else:
            messages += _exchange(random, offered.need(random), thinking)
    return Example(tuple(messages), offered.tools, thinking)


def _exchange(random: Random, need: Need, thinking: bool) -> list[Message]:
    call = assistant(_call(need.name, need.arguments), f"The tool {need.name} fits." if thinking else "")
    messages: list[Message] = [user(need.question), call]
    if random.random() < 0.5:
        result = _make(random, need.family.result)
        answer = need.family.answer.format(**{**need.arguments, **result})
        messages += [
            {"role": "tool", "content": json.dumps(result)},
            assistant(answer, "I tell what the tool answered." if thinking else ""),
        ]
    return messages


def probe(random: Random) -> Probe:
    """Tools with names made of new words."""
    offered = offer(random, made_up=1.0)
    need = offered.need(random)
    expected = {"name": need.name, "arguments": need.arguments}

    def judge(text: str) -> bool:
        inside = text.partition("<tool_call>")[2].partition("</tool_call>")[0]
        try:
            return bool(json.loads(inside) == expected)
        except ValueError:
            return False

    return Probe((user(need.question),), judge, offered.tools)


SYSTEMS: Sequence[str] = (
    "", "", "", "", "", "You are a helpful assistant.", "You are the guide of Quire.", "Be brief.",
    "Answer in one sentence.",
)  # fmt: skip
