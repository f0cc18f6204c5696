"""Conversations as skills make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import yaml

Message = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """A question, and the answer that the model is to learn."""

    question: str
    answer: str
    thought: str = ""  # what goes between <think> and </think> when thinking is enabled


@dataclass(frozen=True)
class Example:
    """A whole conversation; the model learns its assistant messages."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()
    thinking: bool = False


@dataclass(frozen=True)
class Probe:
    """A held-out prompt and how its answer is judged."""

    messages: tuple[Message, ...]
    judge: Callable[[str], bool]
    tools: tuple[Message, ...] = field(default=())


_OPENING = (
    "[[|Quick |One |A |Another |My ]question: |[Hey|Hi|Hello|Okay|Thanks|So|Well|Right|Good]{mark} |And |Now |"
    "[Please|Can you please|Could you|I want you to|Now] [tell me|help me|let me know|work this out|explain]{mark} |"
    "[I want to know|I need this|I wonder|Tell me this|For me|Dear model]{mark} ]"
)
_CLOSING = "[ Please.| Thanks!| Thank you.| I need it now.| Be quick.| Can you help?]"
_ALTERNATIVES = re.compile(r"\[([^][]*)\]")
Skill = Callable[[Random], Sequence[Turn]]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    return message | {"reasoning_content": thought} if thought else message


def to_example(turns: Sequence[Turn], system: str, thinking: bool) -> Example:
    """A conversation of turns."""
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += [user(turn.question), assistant(turn.answer, turn.thought if thinking else "")]
    return Example(tuple(messages), thinking=thinking)


@cache
def read_data(name: str) -> Any:
    """A YAML file of this folder."""
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def pick(random: Random, *choices: T) -> T:
    """One of the choices."""
    return random.choice(choices)


def expand(random: Random, template: str) -> str:
    """The template with one of each [choice|between|several]; they may stand inside each other."""
    while "[" in template:
        template = _ALTERNATIVES.sub(lambda found: random.choice(found[1].split("|")), template)
    return template


def fill(random: Random, templates: Sequence[str], values: Mapping[str, Any]) -> str:
    """One of the templates, expanded, with its {names} filled in."""
    return expand(random, random.choice(list(templates))).format(**values)


def loosen(random: Random, text: str) -> str:
    """As people type: sometimes no capital, no full stop, or words around the matter."""
    if random.random() < 0.3:
        text = text[:1].lower() + text[1:]
    if random.random() < 0.3 and text[-1:] in ".?!":
        text = text[:-1]
    if random.random() < 0.3:
        text = fill(random, (_OPENING,), {"mark": pick(random, "", ",", ":", ".", "!")}) + text
    if random.random() < 0.1:
        text += expand(random, _CLOSING)
    return text
