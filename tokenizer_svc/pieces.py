"""Splits long texts into pieces that are encoded one by one, and bounds a text's number of tokens from below.

Encoding takes hundreds of bytes of memory per character and cannot be interrupted, so a long text is encoded in pieces
where that gives exactly the same tokens: cut between two words, for tokenizers that split a text at spaces by known
rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers

# Between a letter and a space that is followed by another letter.
_CUT = re.compile(r"[A-Za-z](?= [A-Za-z])")
# NFC composes at most four characters into one.
_NFC_SHRINKS = 4
# Alternatives of the split rules that current vocabularies use. None matches a letter together with the space after it,
# none looks behind, and only whitespace looks ahead, so a text that is cut there splits the same way.
_WORD_RULES = frozenset(
    (
        r"'s", r"'t", r"'re", r"'ve", r"'m", r"'ll", r"'d", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)",
        r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r"\s+(?!\S)", r"\s+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r"\p{N}{1,3}", r"\s*[\r\n]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+[\r\n]*",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{L}+", r"\d", r"\n+", r"[^\S\n]", r"[^\s\p{L}\d]+(?: [^\s\p{L}\d]+)*",  # used by the demo model
    )
)  # fmt: skip


@dataclass(frozen=True)
class TextPieces:
    """How one tokenizer's texts can be cut, and how long its tokens can be."""

    # Maximum number of characters of a text that one token stands for; 0 means unknown.
    max_chars_per_token: int
    # Whether a text may be cut between words.
    can_cut: bool

    def least_tokens(self, text: str) -> int:
        """A lower bound on the text's number of tokens."""
        return -(-len(text) // self.max_chars_per_token) if self.max_chars_per_token else 0

    def cut(self, text: str, size: int) -> Iterator[str]:
        """Yields pieces of about `size` characters, whose tokens together are exactly those of the text."""
        start = 0
        while self.can_cut and len(text) - start > size and (match := _CUT.search(text, start + size)):
            yield text[start : match.end()]
            start = match.end()
        yield text[start:]


def text_pieces(tokenizer: tokenizers.Tokenizer, definition: dict[str, Any]) -> TextPieces:
    """Derives how a tokenizer's texts can be cut.

    Args:
        definition: the parsed tokenizer.json.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    # Added tokens that strip the whitespace around them can stand for any amount of it.
    if not _is_byte_level(definition) or any(token.lstrip or token.rstrip for token in added):
        return TextPieces(0, False)
    # Each character of a token's spelling stands for one byte, hence for at most one character of the text.
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
    composes = definition.get("normalizer") is not None
    can_cut = not any(" " in token.content for token in added) and _splits_words(definition["pre_tokenizer"])
    return TextPieces(longest * (_NFC_SHRINKS if composes else 1), can_cut)


def _is_byte_level(definition: dict[str, Any]) -> bool:
    """Whether the tokens preserve all bytes of a text, apart from NFC composition."""
    if definition["model"]["type"] != "BPE" or (definition.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        return False
    steps = _steps(definition.get("pre_tokenizer"))
    keeps = all(step["type"] != "Split" or step["behavior"] == "Isolated" for step in steps)
    return keeps and {step["type"] for step in steps} <= {"Split", "Digits", "ByteLevel"} and _spells_bytes(steps)


def _spells_bytes(steps: list[dict[str, Any]]) -> bool:
    """Whether the last step spells bytes as characters, without adding a prefix space."""
    return bool(steps) and steps[-1]["type"] == "ByteLevel" and not steps[-1].get("add_prefix_space")


def _splits_words(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether a text is always split before the space between two words, whatever surrounds it."""
    steps = _steps(pre_tokenizer)
    splits = [_alternatives((step.get("pattern") or {}).get("Regex", "")) for step in steps if step["type"] == "Split"]
    known = all(set(rules) <= _WORD_RULES for rules in splits)
    # By ByteLevel's own regex (GPT-2's rules), or by a rule for whitespace.
    by_words = bool(steps[-1].get("use_regex", True)) or any(r"\s+" in rules or r"[^\S\n]" in rules for rules in splits)
    return known and by_words


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    inner: list[dict[str, Any]] = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
    return inner


def _alternatives(pattern: str) -> list[str]:
    """Splits a pattern at its top-level bars."""
    found, depth, in_class, start, index = [], 0, False, 0, 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 1
        elif in_class or character == "[":
            in_class = character != "]"
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and not depth:
            found.append(pattern[start:index])
            start = index + 1
        index += 1
    return [*found, pattern[start:]]
