"""Incremental detokenization: the text of a growing sequence, emitted only once it is final and in whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

import tokenizers

from quire.tokenizer.token_bytes import TokenBytes

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Decodes one sequence. The concatenation of all returned texts equals decoding the whole sequence at once."""

    def add(self, token_id: int) -> str:
        """The text that became final with this token; may be empty."""

    def finish(self) -> str:
        """The remaining text, with a replacement character for an incomplete character."""


class BytesDetokenizer:
    """Decodes sequences of vocabularies whose tokens stand for bytes."""

    def __init__(self, token_bytes: TokenBytes, skipped: frozenset[int], is_first: bool) -> None:
        """
        Args:
            skipped: ids that have no text here.
            is_first: whether nothing precedes the sequence.
        """
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._strip = is_first and token_bytes.strips_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        text = self._decoder.decode(self._token_bytes[token_id])
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


# A genuine replacement character in the output looks like an incomplete one; after this many tokens it counts as
# genuine.
_LONGEST_CHARACTER = 6


class WindowDetokenizer:
    """Decodes for decoders that merge neighboring tokens, such as WordPiece: decodes a short window again for each
    token."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        skipped: frozenset[int],
        context: Sequence[int],
        vocab_size: int,
        joined: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            skipped: ids that have no text here.
            context: the tokens before the sequence; they determine its leading space.
            vocab_size: ids from this one on have no text.
            joined: ids without a space between them when they are adjacent.
        """
        self._joined = joined
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._vocab_size = vocab_size
        self._shown = [token_id for token_id in context if self._has_text(token_id)]  # tokens whose text was returned
        self._waiting: list[int] = []

    def add(self, token_id: int) -> str:
        if not self._has_text(token_id):
            return ""
        self._waiting.append(token_id)
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._waiting) < _LONGEST_CHARACTER:
            return ""
        if text:
            joins = token_id in self._joined and self._shown[-1:] and self._shown[-1] in self._joined
            self._shown, self._waiting = self._waiting, []
            return text.removeprefix(" ") if joins else text
        return text

    def finish(self) -> str:
        text = self._new_text() if self._waiting else ""
        self._waiting = []
        return text

    def _has_text(self, token_id: int) -> bool:
        return token_id < self._vocab_size and token_id not in self._skipped

    def _new_text(self) -> str:
        before = self._decode(self._shown)
        after = self._decode(self._shown + self._waiting)
        return after[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
