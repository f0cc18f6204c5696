"""Formats of tool calls: a file each, with an `AnswerParser` that turns content into `ToolCall`s."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Name → module:class.
TOOL_PARSERS: Mapping[str, str] = MappingProxyType({})
