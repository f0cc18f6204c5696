"""What parsers know of the request whose answers they read."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ToolChoice(enum.Enum):
    """Whether an answer calls tools, in OpenAI's terms; `NAMED` means that the request names a function."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # decoded JSON schema
    is_strict: bool = False  # arguments must match the schema


@dataclass(frozen=True)
class AnswerContext:
    """The properties of a request that determine the form of its answers."""

    tools: tuple[Tool, ...] = ()  # tools that may be called; only the named one, if any
    tool_choice: ToolChoice = ToolChoice.AUTO
    thinking_is_open: bool = False  # the prompt ends inside the reasoning


NO_CONTEXT = AnswerContext()
