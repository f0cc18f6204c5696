"""Request traces for the bundled model: questions that it has not been trained on, one kind per trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from demo_model.corpus import guide, json_objects, tools
from demo_model.corpus.example import user
from demo_model.corpus.words import word

Body = dict[str, Any]

_COPIED_WORDS = 24


def _chat(random: Random) -> Body:
    return {"messages": [user(guide.guide(random)[0].question)]}


def _json(random: Random) -> Body:
    """Constrained output, so that draft tokens are cut off where the grammar would not accept them."""
    return {"messages": list(json_objects.probe(random).messages), "response_format": {"type": "json_object"}}


def _tools(random: Random) -> Body:
    probe = tools.probe(random)
    return {"messages": list(probe.messages), "tools": list(probe.tools)}


def _copying(random: Random) -> Body:
    return {"messages": [user("Repeat: " + " ".join(word(random) for _ in range(_COPIED_WORDS)))]}


TRACES: Mapping[str, Callable[[Random], Body]] = MappingProxyType(
    {"chat": _chat, "JSON": _json, "tool calls": _tools, "copying": _copying}
)
