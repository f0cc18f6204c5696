"""One sequence of a detokenization session: turns tokens into text until a stop string ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.reasoning import ReasoningTracker
from tokenizer_svc.detokenizer import Detokenizer
from tokenizer_svc.stop_strings import Match, StopMatcher


@dataclass(frozen=True, slots=True)
class Step:
    """The result of adding some tokens."""

    text: str
    stop_string: str | None = None
    tokens_used: int = 0  # if stop_string is set: number of tokens up to and including the match
    lengths: Sequence[int] = ()  # characters that became final with each token, including stop strings


class TextSequence:
    """Turns tokens into text. Must not be used again after a stop string or `is_last`."""

    def __init__(
        self, detokenizer: Detokenizer, matcher: StopMatcher, min_tokens: int, thinking: ReasoningTracker | None = None
    ) -> None:
        """
        Args:
            min_tokens: no stop string ends the sequence within this many first tokens.
            thinking: tracks reasoning; no stop string ends the sequence before the answer has begun.
        """
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._thinking = thinking
        self._num_tokens = 0

    def replay(self, history: Sequence[int], start: int) -> int:
        """Restores the state after tokens that did not end the sequence and whose text was already delivered.

        Args:
            history: all those tokens; only the ones from `start` on are decoded.

        Returns:
            Number of characters that the decoded tokens yielded.
        """
        self._num_tokens = len(history)
        if self._thinking:
            self._thinking.advance(history)
        return sum(len(self._matcher.pass_over(self._detokenizer.add(token_id))) for token_id in history[start:])

    def add(self, token_ids: Sequence[int], is_last: bool) -> Step:
        """The text that became final with these tokens; with `is_last`, also everything held back."""
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
