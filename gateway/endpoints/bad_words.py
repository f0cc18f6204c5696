"""Tokenizes bad words: each becomes the token sequences in which it can appear."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.services.tokenizer import Tokenizer
from quire.bounds import MAX_BAD_WORD_TOKENS
from quire.errors import InvalidRequest

_SHOWN = 50  # maximum characters of a word in messages


async def bad_word_runs(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the tokens of each word at the start of a text, and after a space if those differ.

    Raises:
        InvalidRequest: a word has no tokens, or too many.
    """
    bare = [word.lstrip(" ") or word for word in words]
    texts = [text for word in bare for text in (word, f" {word}")]
    runs = [tuple(sequence.token_ids) for sequence in await tokenizer.encode(texts, False)] if texts else []
    found: dict[tuple[int, ...], None] = {}
    for word, alone, spaced in zip(words, runs[::2], runs[1::2], strict=True):
        if not 1 <= len(alone) <= MAX_BAD_WORD_TOKENS:
            raise InvalidRequest(
                f"bad_words has {word[:_SHOWN]!r}, which has {len(alone)} tokens; each word must have 1 to "
                f"{MAX_BAD_WORD_TOKENS}.",
                parameter="bad_words",
            )
        found[alone] = None
        if spaced[-len(alone) :] != alone and len(spaced) <= MAX_BAD_WORD_TOKENS:
            found[spaced] = None
    return list(found)
