"""Prompts with a hole: the model writes what stands between a prompt and its suffix, if it was taught to."""

from __future__ import annotations

import tokenizers

from quire.errors import InvalidRequest

# What models put before the beginning, before the end, and where they are to write.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
# Of models that read the end first.
_END_FIRST_MARKS = ("[SUFFIX]", "[PREFIX]")


def with_hole(tokenizer: tokenizers.Tokenizer, prompt: str, suffix: str) -> str:
    """The text that has the model write what comes between the two.

    Raises:
        InvalidRequest: the tokenizer has no tokens for it.
    """
    for before, after, here in _MARKS:
        if _has_all(tokenizer, before, after, here):
            return before + prompt + after + suffix + here
    after, before = _END_FIRST_MARKS
    if _has_all(tokenizer, after, before):
        return after + suffix + before + prompt
    raise InvalidRequest(
        "This model cannot fill in a middle: its tokenizer has no tokens for it, such as <|fim_prefix|>. Leave suffix "
        "out.",
        parameter="suffix",
    )


def _has_all(tokenizer: tokenizers.Tokenizer, *tokens: str) -> bool:
    return all(tokenizer.token_to_id(token) is not None for token in tokens)
