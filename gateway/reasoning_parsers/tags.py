"""Reasoning between two tags, before the answer.

The templates of DeepSeek-R1, Step and Qwen3's thinking models end the prompt with `<think>`, so that the output has
only the end tag. GLM-4.5 and Qwen3's hybrid models write both tags themselves. Templates write an empty pair into the
prompt if thinking is turned off.
"""

from __future__ import annotations

from gateway.reasoning_parsers.base import MarkedParser


class ThinkTags(MarkedParser):
    """`<think>…</think>`, opened by the prompt or the output."""

    start_mark = "<think>"
    end_mark = "</think>"
    special_tokens = (start_mark, end_mark)


class AlwaysThinkTags(ThinkTags):
    """The same for models that always reason first, whether or not anything opens the reasoning."""

    is_optional = False


class ThinkTagsOrCalls(ThinkTags):
    """The same; tool calls of DeepSeek V4 begin the answer even if the model leaves the end tag out."""

    answer_starts = ("<｜DSML｜tool_calls>",)


class ThinkTagsOrSpacedCalls(ThinkTags):
    """The same for DeepSeek V4.1, whose tool calls are marked in another way."""

    answer_starts = ("<｜DSML｜ calls>",)


class BracketTags(MarkedParser):
    """`[THINK]…[/THINK]`, which are control tokens of Mistral's vocabularies."""

    start_mark = "[THINK]"
    end_mark = "[/THINK]"
    special_tokens = (start_mark, end_mark)


class SeedTags(MarkedParser):
    """`<seed:think>…</seed:think>`; tags about the thinking budget inside it stay in the reasoning."""

    start_mark = "<seed:think>"
    end_mark = "</seed:think>"
    special_tokens = (start_mark, end_mark)


class HunyuanTags(MarkedParser):
    """`<think:opensource>…</think:opensource>`, which are tokens of Hunyuan 3."""

    start_mark = "<think:opensource>"
    end_mark = "</think:opensource>"
    special_tokens = (start_mark, end_mark)


class Hunyuan4Tags(MarkedParser):
    """`<think:6124c78e>…</think:6124c78e>`, which are tokens of Hunyuan 4."""

    start_mark = "<think:6124c78e>"
    end_mark = "</think:6124c78e>"
    special_tokens = (start_mark, end_mark)


class MiniMaxTags(MarkedParser):
    """`<mm:think>…</mm:think>`, which are tokens of MiniMax-M3. It may begin with the end tag if it does not reason."""

    start_mark = "<mm:think>"
    end_mark = "</mm:think>"
    may_begin_closed = True
    special_tokens = (start_mark, end_mark)


class SolarTags(MarkedParser):
    """`<|think:start|>…<|think:end|>`, which are tokens of Solar Open 2, or up to a tool call."""

    start_mark = "<|think:start|>"
    end_mark = "<|think:end|>"
    answer_starts = ("<|tool_call:start|>",)
    special_tokens = (start_mark, end_mark, *answer_starts)


class CohereTags(MarkedParser):
    """`<|START_THINKING|>…<|END_THINKING|>`, which are special tokens of Command R7B, A and A Plus."""

    start_mark = "<|START_THINKING|>"
    end_mark = "<|END_THINKING|>"
    special_tokens = (start_mark, end_mark)


class GemmaChannel(MarkedParser):
    """Gemma 4: a channel of its own, `<|channel>thought …<channel|>`."""

    start_mark = "<|channel>thought"
    end_mark = "<channel|>"
    special_tokens = ("<|channel>", end_mark)
