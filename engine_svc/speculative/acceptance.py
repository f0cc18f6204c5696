"""Acceptance rates of guesses, by their kind and by sequence."""

from __future__ import annotations

from engine_svc.speculative.guesser import MODEL_KIND, NUM_KINDS

# The prior rate of a kind counts as this many guesses.
_PRIOR_WEIGHT = 4.0
# The rate of the kind counts as this many guesses of a sequence.
_SEQUENCE_WEIGHT = 6.0
# Effective number of guesses that count, of a kind and of a sequence; older ones decay.
_KIND_MEMORY = 256.0
_SEQUENCE_MEMORY = 12.0


class Rate:
    """A success rate with exponentially decaying memory."""

    __slots__ = ("_memory", "hits", "tries")

    def __init__(self, memory: float, prior: float = 0.0, weight: float = 0.0) -> None:
        self._memory = memory
        self.tries = weight
        self.hits = prior * weight

    def note(self, hits: int, tries: int) -> None:
        """Adds tries, and how many of them were hits."""
        keep = max(0.0, 1.0 - tries / self._memory) if self.tries + tries > self._memory else 1.0
        self.tries = self.tries * keep + tries
        self.hits = self.hits * keep + hits

    @property
    def share(self) -> float:
        """Share of hits among the tries; 0 without tries."""
        return self.hits / self.tries if self.tries else 0.0


class Acceptance:
    """Rates of an engine's guesses by kind: for the first token, and for tokens after an accepted one."""

    def __init__(self) -> None:
        kinds = range(NUM_KINDS)
        self._first = [Rate(_KIND_MEMORY, _prior(kind), _PRIOR_WEIGHT) for kind in kinds]
        self._next = [Rate(_KIND_MEMORY, max(0.5, _prior(kind)), _PRIOR_WEIGHT) for kind in kinds]

    def note(self, kind: int, of_sequence: Rate, num_guessed: int, num_right: int) -> None:
        """Records a guess that was compared with the actual tokens: its first `num_right` tokens were right."""
        self._first[kind].note(num_right > 0, 1)
        if tested := min(num_right, num_guessed - 1):
            self._next[kind].note(num_right - 1, tested)
        tested = min(num_right + 1, num_guessed)
        of_sequence.note(num_right, tested)

    def rates(self, kind: int, of_sequence: Rate) -> tuple[float, float]:
        """Probabilities that the first token of a guess is right, and that a token after a right one is."""
        tries, hits = of_sequence.tries, of_sequence.hits
        weight = tries + _SEQUENCE_WEIGHT
        first = (hits + _SEQUENCE_WEIGHT * self._first[kind].share) / weight
        following = (hits + _SEQUENCE_WEIGHT * self._next[kind].share) / weight
        return first, following


def sequence_rate() -> Rate:
    """Rate of a new sequence."""
    return Rate(_SEQUENCE_MEMORY)


def _prior(kind: int) -> float:
    """Prior rate: high for draft models; for lookups it grows with the match length, and if all occurrences agree."""
    return 0.7 if kind == MODEL_KIND else min(0.9, 0.2 + 0.1 * (kind // 2) + 0.1 * (kind % 2))
