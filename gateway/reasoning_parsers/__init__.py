"""Formats of reasoning: a file each, with an `AnswerParser` that turns content into `Reasoning`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Name → module:class.
REASONING_PARSERS: Mapping[str, str] = MappingProxyType({})
