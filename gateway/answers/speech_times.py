"""When the words of a recording are spoken, in answers with marks such as `<|0.00|> Hello.<|2.50|>`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.answers.deltas import TokenScore

_MARK = re.compile(r"(<\|[^|<>]*\|>)")
_TIME = re.compile(r"<\|(\d{1,5}\.\d{1,3})\|>")
_LEAST = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class SpeechSegment:
    """Some words, and when they are spoken.

    Attributes:
        start, end: in seconds, in the piece of the recording.
        token_ids, logprob: of the words' tokens, and the mean of their log-probabilities; nothing and 0 if they have no
            scores.
    """

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0


def segments_of(text: str, scores: Sequence[TokenScore], seconds: float) -> Iterator[SpeechSegment]:
    """Yields the words between two marks each, unless there are none.

    Words before any mark begin with the piece, and words after the last one end with it; times never decrease, nor
    exceed the piece. Marks other than times are dropped.

    Args:
        scores: one for each token; empty if there are none.
        seconds: length of the piece.
    """
    tokens = _Tokens(scores)
    start, words = 0.0, ""
    own: list[TokenScore] = []
    for index, part in enumerate(_MARK.split(text)):
        passed = tokens.up_to(len(part))
        if not index % 2:
            words += part
            own += passed
        elif time := _TIME.fullmatch(part):
            end = min(max(float(time[1]), start), seconds)
            if words.strip():
                yield _segment(start, end, words, own)
            start, words, own = end, "", []
    if words.strip():
        yield _segment(start, seconds, words, own)


class _Tokens:
    """The tokens of a text, taken as the text is read."""

    def __init__(self, scores: Sequence[TokenScore]) -> None:
        self._scores = scores
        self._next = 0
        self._place, self._end = 0, 0  # characters of the tokens taken, and of the text read

    def up_to(self, length: int) -> Sequence[TokenScore]:
        """Returns the tokens of the next characters: those up to the one that completes the last of them."""
        self._end += length
        first = self._next
        while self._place < self._end and self._next < len(self._scores):
            self._place += self._scores[self._next].text_length
            self._next += 1
        return self._scores[first : self._next]


def _segment(start: float, end: float, words: str, scores: Sequence[TokenScore]) -> SpeechSegment:
    logprobs = [max(score.logprobs[0], _LEAST) for score in scores]
    mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
    return SpeechSegment(start, end, words, tuple(score.token_ids[0] for score in scores), mean)
