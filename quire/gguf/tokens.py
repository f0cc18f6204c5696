"""The vocabulary of a GGUF file."""

from __future__ import annotations

from enum import IntEnum

from quire.gguf.files import Gguf

# Tokens that end an answer in some chat format, and that files seldom declare as such.
_ENDS = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<|return|>", "<|call|>", "<EOT>", "<|END_OF_TURN_TOKEN|>", "<turn|>", "<|tool_response>",
})  # fmt: skip
# Those that files declare as text, so that it is shown: behind Gemma 4's calls, where tools answer.
_VISIBLE_ENDS = frozenset({"<|tool_response>"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenKind(IntEnum):
    """Kinds of tokens, numbered as in tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def token_kinds(model: Gguf) -> list[int]:
    """The kind of each token; all are NORMAL if the file does not say."""
    count, found = len(model.texts("tokenizer.ggml.tokens")), model.metadata.get("tokenizer.ggml.token_type")
    return found if isinstance(found, list) and len(found) == count else [TokenKind.NORMAL] * count


def end_token_ids(model: Gguf) -> list[int]:
    """Ids of the tokens that end an answer: those that the file declares, and those that do in a known chat format."""
    named = {model.number(f"tokenizer.ggml.{key}") for key in _END_KEYS}
    tokens = zip(model.texts("tokenizer.ggml.tokens"), token_kinds(model), strict=True)
    ends: dict[int, frozenset[str]] = {TokenKind.CONTROL: _ENDS, TokenKind.USER_DEFINED: _VISIBLE_ENDS}
    known = {index for index, (text, kind) in enumerate(tokens) if text in ends.get(kind, frozenset())}
    return sorted(index for index in named | known if index is not None)
