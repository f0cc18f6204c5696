"""Guesses that what followed the last tokens when they stood in the sequence before follows them again."""

from __future__ import annotations

from engine_svc.requests.sequence import Sequence
from engine_svc.speculative.guesser import Guess, continued, kind_of
from engine_svc.speculative.token_index import TokenIndex

# Tokens that are taken in for all sequences in a step, a fifth of a microsecond each.
_STEP_TOKENS = 512
# Earlier occurrences that are looked at, for the one of which the most tokens agree.
_OCCURRENCES = 8
# Tokens of a match that are counted: how long it is says how likely it goes on.
_LONGEST = 24


class _Text:
    """What is known of one sequence."""

    __slots__ = ("index", "length", "position", "seen")

    def __init__(self, sequence: Sequence, width: int) -> None:
        embeds = sequence.owner.request.prompt_embeds
        self.index = TokenIndex(sequence.token_ids, width, sequence.num_prompt_tokens if embeds else 0)
        self.seen = len(sequence.token_ids)
        self.position = -1  # that which is guessed to come next, in the sequence itself; -1 where nothing is
        self.length = 0  # of the match before it

    def follow(self) -> None:
        """A match goes on, or ends, with the tokens that have come since."""
        tokens, seen = self.index.tokens, self.seen
        for index in range(seen, len(tokens)):
            if self.position < 0 or tokens[index] != tokens[self.position]:
                self.position = -1
                break
            self.position += 1
            self.length += 1
        self.seen = len(tokens)


class NgramGuesser:
    """A match that goes on is followed; else the longest of the latest few is looked for, least to most tokens long."""

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
        """The latest of the longest matches, all of which count as `most` tokens long that are longer."""
        index, best = text.index, self._least - 1
        tokens = index.tokens
        for position in index.occurrences(tokens, _OCCURRENCES):
            length = index.common(position, tokens, _LONGEST)
            if min(length, self._most) > best:
                best = min(length, self._most)
                text.position, text.length = position, length
