"""One sequence of a detokenization session: tokens in, text out, until a stop string ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.reasoning import ReasoningTracker
from tokenizer_svc.detokenizer import Detokenizer
from tokenizer_svc.stop_strings import Match, StopMatcher


@dataclass(frozen=True, slots=True)
class Step:
    """What some tokens brought."""

    text: str
    stop_string: str | None = None
    tokens_used: int = 0  # with stop_string: how many of the tokens, up to and including the match
    lengths: Sequence[int] = ()  # characters that each of the tokens made certain, stop strings counted


class TextSequence:
    """Turns tokens to text. After a stop string or `is_last` it must not be used again."""

    def __init__(
        self, detokenizer: Detokenizer, matcher: StopMatcher, min_tokens: int, thinking: ReasoningTracker | None = None
    ) -> None:
        """
        Args:
            min_tokens: no stop string ends the sequence within its first this many tokens.
            thinking: nor does one before the answer has begun.
        """
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._thinking = thinking
        self._num_tokens = 0

    def replay(self, history: Sequence[int], start: int) -> int:
        """Comes to where the sequence stands after tokens that did not end it and whose text is out.

        Args:
            history: all of them, of which those from `start` on are worked through.

        Returns:
            How many characters these brought.
        """
        self._num_tokens = len(history)
        if self._thinking:
            self._thinking.advance(history)
        return sum(len(self._matcher.pass_over(self._detokenizer.add(token_id))) for token_id in history[start:])

    def add(self, token_ids: Sequence[int], is_last: bool) -> Step:
        """The text that these tokens made certain; with `is_last`, also all that was held back."""
        texts: list[str] = []
        lengths: list[int] = []
        may_stop = self._num_tokens > self._min_tokens and (self._thinking is None or self._thinking.answers)
        for used, token_id in enumerate(token_ids, 1):
            self._num_tokens += 1
            may_stop = self._num_tokens > self._min_tokens
            if self._thinking:
                self._thinking.advance((token_id,))
                may_stop = may_stop and self._thinking.answers
            text = self._detokenizer.add(token_id)
            lengths.append(len(text))
            found = self._matcher.add(text, may_stop)
            if isinstance(found, Match):
                return Step("".join((*texts, found.text)), found.stop_string, used, lengths)
            texts.append(found)
        if is_last:
            found = self._matcher.add(self._detokenizer.finish(), may_stop)
            if isinstance(found, Match):
                return Step("".join((*texts, found.text)), found.stop_string, len(token_ids), lengths)
            texts += (found, self._matcher.finish())
        return Step("".join(texts), lengths=lengths)
