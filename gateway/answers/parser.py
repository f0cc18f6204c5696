"""Parsers, which find in a choice's text what is not content: reasoning, calls of tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish


class AnswerParser(ABC):
    """Reads the text of one choice as it comes. One is made for each choice.

    Contract, which `tests/conformance/test_answer_parsers.py` holds every registered parser to:

    * What comes of a text is the same however it is cut, and whole answers go the same way as streamed ones.
    * Text is held back only while it may be the beginning of something else; at the end, nothing stays behind.
    * What another parser has found passes untouched. `Finish` comes last, once.
    """

    # Tokens that it reads. Where the model's vocabulary has them as special tokens, they stay in the text, from which
    # all others are dropped.
    special_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: AnswerContext) -> None:
        """
        Args:
            context: what is known of the request.
        """
        self.context = context

    def feed(self, delta: Delta) -> Sequence[Delta]:
        """What a delta becomes, with what has waited for it."""
        if isinstance(delta, Content):
            return self.parse(delta.text)
        return self.end(delta) if isinstance(delta, Finish) else (delta,)

    @abstractmethod
    def parse(self, text: str) -> Sequence[Delta]:
        """What is certain now that this text has come; empty deltas are left out."""

    def end(self, finish: Finish) -> Sequence[Delta]:
        """What was held back, and the end."""
        return (finish,)


class ParserChain:
    """The parsers of one choice: each reads the content that those before it have left."""

    def __init__(self, parsers: Iterable[AnswerParser]) -> None:
        self._parsers = tuple(parsers)

    def feed(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        """What the deltas become."""
        for parser in self._parsers:
            deltas = [found for delta in deltas for found in parser.feed(delta)]
        return deltas
