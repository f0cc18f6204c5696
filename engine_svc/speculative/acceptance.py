"""How often guesses turn out to be right, by their kind and by the sequence that they are for."""

from __future__ import annotations

from engine_svc.speculative.guesser import MODEL_KIND, NUM_KINDS

# What is known of a kind before anything was measured counts as so many guesses.
_PRIOR_WEIGHT = 4.0
# The kind's rate counts as so many guesses of a sequence.
_SEQUENCE_WEIGHT = 6.0
# Of a kind so many guesses count, of a sequence so many: older ones count less and less.
_KIND_MEMORY = 256.0
_SEQUENCE_MEMORY = 12.0


class Rate:
    """A share, of tries that are forgotten little by little."""

    __slots__ = ("_memory", "hits", "tries")

    def __init__(self, memory: float, prior: float = 0.0, weight: float = 0.0) -> None:
        self._memory = memory
        self.tries = weight
        self.hits = prior * weight

    def note(self, hits: int, tries: int) -> None:
        """So many more tries, and those of them that hit."""
        keep = max(0.0, 1.0 - tries / self._memory) if self.tries + tries > self._memory else 1.0
        self.tries = self.tries * keep + tries
        self.hits = self.hits * keep + hits

    @property
    def share(self) -> float:
        """Of the tries, those that hit; 0 where there are none."""
        return self.hits / self.tries if self.tries else 0.0


class Acceptance:
    """Of an engine: the rates of each kind, at a guess's first position and at those behind one that was right."""

    def __init__(self) -> None:
        kinds = range(NUM_KINDS)
        self._first = [Rate(_KIND_MEMORY, _prior(kind), _PRIOR_WEIGHT) for kind in kinds]
        self._next = [Rate(_KIND_MEMORY, max(0.5, _prior(kind)), _PRIOR_WEIGHT) for kind in kinds]

    def note(self, kind: int, of_sequence: Rate, num_guessed: int, num_right: int) -> None:
        """Of a guess that has been compared with what came: so many of its first tokens were right."""
        self._first[kind].note(num_right > 0, 1)
        if tested := min(num_right, num_guessed - 1):
            self._next[kind].note(num_right - 1, tested)
        tested = min(num_right + 1, num_guessed)
        of_sequence.note(num_right, tested)

    def rates(self, kind: int, of_sequence: Rate) -> tuple[float, float]:
        """(that a guess's first token is right, that one behind a right one is)."""
        tries, hits = of_sequence.tries, of_sequence.hits
        weight = tries + _SEQUENCE_WEIGHT
        first = (hits + _SEQUENCE_WEIGHT * self._first[kind].share) / weight
        following = (hits + _SEQUENCE_WEIGHT * self._next[kind].share) / weight
        return first, following


def sequence_rate() -> Rate:
    """Of a sequence that begins."""
    return Rate(_SEQUENCE_MEMORY)


def _prior(kind: int) -> float:
    """Models mostly agree; long matches go on more often than short ones, and most so where all occurrences agree."""
    return 0.7 if kind == MODEL_KIND else min(0.9, 0.2 + 0.1 * (kind // 2) + 0.1 * (kind % 2))
