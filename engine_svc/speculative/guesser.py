"""The contract of a method that guesses from tokens alone, with neither a model nor a thought of what it costs."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple, Protocol

from engine_svc.requests.sequence import Sequence

# Bounds of the lengths of a match by which guesses are told apart: the longer, the likelier they are right.
_LENGTHS = (1, 2, 3, 5, 8, 16)
MODEL_KIND = 2 * (len(_LENGTHS) + 1)  # of what models guess
NUM_KINDS = MODEL_KIND + 1


class Guess(NamedTuple):
    """What may come next."""

    token_ids: tuple[int, ...]  # at least one
    kind: int = 0  # guesses of one kind turn out to be right about as often; below NUM_KINDS


class Guesser(Protocol):
    """Asked for a sequence before a step, all of whose tokens that are known it may look at.

    It bounds its own time: what it has not seen yet of a long prompt it takes in over several steps.
    """

    def begin(self) -> None:
        """A step is planned: what it may take in of all sequences together is counted from here."""

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        """The tokens that may follow the known ones, `most` at most; None where it has no idea."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended. It may be unknown."""


def kind_of(length: int, is_certain: bool) -> int:
    """Of a guess that follows a match of so many tokens, behind which always, or not always, the same came."""
    return 2 * sum(length > bound for bound in _LENGTHS) + is_certain


def continued(tokens: abc.Sequence[int], position: int, most: int) -> tuple[int, ...]:
    """The tokens from a position on; where they end, as though they went on as they did from there."""
    found = tuple(tokens[position : position + most])
    while found and len(found) < most:
        found += found[: most - len(found)]
    return found
