"""Parsers that find reasoning and tool calls in a choice's text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish


class AnswerParser(ABC):
    """Parses the text of one choice as it arrives. There is one instance per choice.

    Contract, checked for every registered parser by `tests/conformance/test_answer_parsers.py`:

    * The result does not depend on how the text is cut; whole answers are parsed like streamed ones.
    * Text is held back only while it may be the beginning of something else; nothing is left over at the end.
    * Deltas found by another parser pass through unchanged. `Finish` comes last, once.
    """

    # Tokens that it parses. If they are special tokens of the model's vocabulary, they stay in the text; all other
    # special tokens are dropped.
    special_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: AnswerContext) -> None:
        """
        Args:
            context: what is known of the request.
        """
        self.context = context

    def feed(self, delta: Delta) -> Sequence[Delta]:
        """Parses a delta; returns the resulting deltas, including text held back before it."""
        if isinstance(delta, Content):
            return self.parse(delta.text)
        return self.end(delta) if isinstance(delta, Finish) else (delta,)

    @abstractmethod
    def parse(self, text: str) -> Sequence[Delta]:
        """Returns the deltas that are certain now that this text has arrived; never empty ones."""

    def end(self, finish: Finish) -> Sequence[Delta]:
        """Returns the deltas held back, and the end."""
        return (finish,)


class ParserChain:
    """The parsers of one choice: each parses the content left by those before it."""

    def __init__(self, parsers: Iterable[AnswerParser]) -> None:
        self._parsers = tuple(parsers)

    def feed(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        """Passes deltas through all parsers."""
        for parser in self._parsers:
            deltas = [found for delta in deltas for found in parser.feed(delta)]
        return deltas
