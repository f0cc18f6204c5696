"""What a parser knows of the request whose answers it reads."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ToolChoice(enum.Enum):
    """Whether an answer calls tools, in OpenAI's words; `NAMED` stands for a function that is named."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # their JSON schema, decoded
    is_strict: bool = False  # arguments that do not fit the schema must not come


@dataclass(frozen=True)
class AnswerContext:
    """Of a request, what the form of its answers depends on."""

    tools: tuple[Tool, ...] = ()  # that may be called; the one that is named, if one is
    tool_choice: ToolChoice = ToolChoice.AUTO
    thinking_is_open: bool = False  # the prompt ends within the model's thinking


NO_CONTEXT = AnswerContext()
