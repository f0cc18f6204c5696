"""Thinking between two tags, before the answer.

Of the families, templates of DeepSeek-R1, Step and Qwen3's thinking models end the prompt with `<think>`, so that the
output has the end tag alone; GLM-4.5 and Qwen3's hybrid models write both tags themselves; templates write an empty
pair into the prompt where thinking is turned off.
"""

from __future__ import annotations

from gateway.reasoning_parsers.base import MarkedParser


class ThinkTags(MarkedParser):
    """`<think>…</think>`, where the prompt or the output opens it."""

    start_mark = "<think>"
    end_mark = "</think>"
    special_tokens = (start_mark, end_mark)


class AlwaysThinkTags(ThinkTags):
    """The same of models that think first, whether or not anything opens it."""

    is_optional = False


class BracketTags(MarkedParser):
    """`[THINK]…[/THINK]`, which are control tokens of Mistral's vocabularies."""

    start_mark = "[THINK]"
    end_mark = "[/THINK]"
    special_tokens = (start_mark, end_mark)


class SeedTags(MarkedParser):
    """`<seed:think>…</seed:think>`; what is between may speak of the budget in tags of its own, which stay."""

    start_mark = "<seed:think>"
    end_mark = "</seed:think>"
    special_tokens = (start_mark, end_mark)
