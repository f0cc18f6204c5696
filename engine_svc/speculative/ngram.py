"""Drafts the tokens that followed an earlier occurrence of the last tokens in the same sequence."""

from __future__ import annotations

from engine_svc.requests.sequence import Sequence
from engine_svc.speculative.guesser import Guess, continued, kind_of
from engine_svc.speculative.token_index import TokenIndex

# Tokens indexed in a step, for all sequences; a fifth of a microsecond each.
_STEP_TOKENS = 512
# Earlier occurrences that are examined, to find the one with the longest match.
_OCCURRENCES = 8
# Most tokens of a match that are counted; the length tells how likely the match continues.
_LONGEST = 24


class _Text:
    """Index and current match of one sequence."""

    __slots__ = ("index", "length", "position", "seen")

    def __init__(self, sequence: Sequence, width: int) -> None:
        embeds = sequence.owner.request.prompt_embeds
        self.index = TokenIndex(sequence.token_ids, width, sequence.num_prompt_tokens if embeds else 0)
        self.seen = len(sequence.token_ids)
        self.position = -1  # of the predicted next token in the sequence itself; -1 without a match
        self.length = 0  # of the match before that position

    def follow(self) -> None:
        """Extends or ends the match with the tokens that have arrived since."""
        tokens, seen = self.index.tokens, self.seen
        for index in range(seen, len(tokens)):
            if self.position < 0 or tokens[index] != tokens[self.position]:
                self.position = -1
                break
            self.position += 1
            self.length += 1
        self.seen = len(tokens)


class NgramGuesser:
    """Follows a match that continues; else finds the longest of the latest few, `least` to `most` tokens long."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._width = min(least, 2)
        self._texts: dict[Sequence, _Text] = {}
        self._budget = _STEP_TOKENS

    def begin(self) -> None:
        """See Guesser."""
        self._budget = _STEP_TOKENS

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        """See Guesser."""
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _Text(sequence, self._width)
        self._budget -= text.index.take_in(self._budget)
        text.follow()
        if text.position < 0:
            self._find(text)
        if text.position < 0:
            return None
        return Guess(continued(sequence.token_ids, text.position, most), kind_of(text.length, is_certain=True))

    def forget(self, sequence: Sequence) -> None:
        """See Guesser."""
        self._texts.pop(sequence, None)

    def _find(self, text: _Text) -> None:
        """Finds the latest of the longest matches; longer ones count as `most` tokens long."""
        index, best = text.index, self._least - 1
        tokens = index.tokens
        for position in index.occurrences(tokens, _OCCURRENCES):
            length = index.common(position, tokens, _LONGEST)
            if min(length, self._most) > best:
                best = min(length, self._most)
                text.position, text.length = position, length
