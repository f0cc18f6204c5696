"""Fill-in-the-middle prompts: the model writes the text between a prompt and its suffix, if it was trained to."""

from __future__ import annotations

import tokenizers

from quire.errors import InvalidRequest

# Markers that models expect before the prefix, before the suffix, and where they are to write.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
# Markers of models that read the suffix first.
_END_FIRST_MARKS = ("[SUFFIX]", "[PREFIX]")


def with_hole(tokenizer: tokenizers.Tokenizer, prompt: str, suffix: str) -> str:
    """Builds the text that makes the model write what comes between prompt and suffix.

    Raises:
        InvalidRequest: the tokenizer has no fill-in-the-middle tokens.
    """
    for before, after, here in _MARKS:
        if _has_all(tokenizer, before, after, here):
            return before + prompt + after + suffix + here
    after, before = _END_FIRST_MARKS
    if _has_all(tokenizer, after, before):
        return after + suffix + before + prompt
    raise InvalidRequest(
        "This model does not support fill-in-the-middle: its tokenizer has no tokens for it, such as <|fim_prefix|>. "
        "Leave suffix out.",
        parameter="suffix",
    )


def _has_all(tokenizer: tokenizers.Tokenizer, *tokens: str) -> bool:
    return all(tokenizer.token_to_id(token) is not None for token in tokens)
