"""The contract of methods that guess next tokens from known tokens alone, without a model or regard for step cost."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple, Protocol

from engine_svc.requests.sequence import Sequence

# Bounds of match lengths that define the kinds of guesses: the longer a match, the likelier the guess is right.
_LENGTHS = (1, 2, 3, 5, 8, 16)
MODEL_KIND = 2 * (len(_LENGTHS) + 1)  # of drafts made by models
NUM_KINDS = MODEL_KIND + 1


class Guess(NamedTuple):
    """Tokens that may come next."""

    token_ids: tuple[int, ...]  # at least one
    kind: int = 0  # guesses of one kind are right about equally often; below NUM_KINDS


class Guesser(Protocol):
    """Guesses for one sequence at a time, before a step, from all of its known tokens.

    It bounds its own time: a long prompt is indexed over several steps.
    """

    def begin(self) -> None:
        """Begins the planning of a step: resets the budget of tokens to index for all sequences."""

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        """Guesses up to `most` tokens that may follow the known ones; None if it has no guess."""

    def forget(self, sequence: Sequence) -> None:
        """Drops the state of a sequence that has ended, which may be unknown."""


def kind_of(length: int, is_certain: bool) -> int:
    """Kind of a guess from a match of `length` tokens; `is_certain` if the same token followed all matches."""
    return 2 * sum(length > bound for bound in _LENGTHS) + is_certain


def continued(tokens: abc.Sequence[int], position: int, most: int) -> tuple[int, ...]:
    """`most` tokens from a position on, repeated periodically if the text ends before."""
    found = tuple(tokens[position : position + most])
    while found and len(found) < most:
        found += found[: most - len(found)]
    return found
