"""How many tokens to guess for each sequence of a step: as many as make the most tokens in a second, or none.

A step without drafts brings a token of each sequence. A drafted token brings one more with the probability that it and
all before it are right, and costs what a row more costs there. Both are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_svc.speculative.step_costs import StepCosts

# Guessing has to promise so much more than not guessing, for neither is known exactly.
_MARGIN = 1.05
# Less likely tokens are not considered.
_LEAST_PROBABILITY = 0.05
# Of the steps with so many sequences that draft one in so many does not, to see what that costs now.
_PLAIN_EVERY = 128
# One in so many drafts somewhat more or less than seems best, for that follows from what was measured alone.
_NEIGHBOUR_EVERY = 16
# Of those that might draft and do not one in so many does, to see what that brings now.
_DRAFT_EVERY = 128
# Where so many steps in a row have drafted nothing, guesses are not even looked for in the next ones: first so many,
# then twice as many each time, up to a bound. Few sequences are looked at always: that costs nothing worth saving.
_AWAKE = 64
_FIRST_SLEEP, _LONGEST_SLEEP = 64, 1024
_FEW_SEQUENCES = 3
_FEW_ROWS = 8


class Offer(NamedTuple):
    """What might be guessed for a sequence."""

    first: float  # probability that the first token is right
    following: float  # and that a further one is, if those before it are
    most: int  # tokens


class Controller:
    """Decides for one engine. Its decisions follow from what it is told alone."""

    def __init__(self, costs: StepCosts, plain_steps: int) -> None:
        """
        Args:
            plain_steps: in a row that tell what steps without drafts cost: more than one where they overlap.
        """
        self._costs = costs
        self._plain_steps = plain_steps
        self._plain_left = 0  # steps that stay plain, whatever is offered
        self._since_plain: dict[int, int] = {}  # number of sequences → steps with drafts since the last without
        self._drafting = 0  # steps that were worth drafting
        self._idle = 0  # steps in a row that drafted nothing
        self._asleep = 0  # steps for which nothing need be offered
        self._asleep_with = 0  # as many sequences as there were when it fell asleep
        self._next_sleep = _FIRST_SLEEP

    def is_asleep(self, num_sequences: int) -> bool:
        """Whether nothing will be guessed for the next step, whatever is offered. Called once for each step."""
        if not self._asleep:
            return False
        self._asleep -= 1
        if num_sequences <= max(_FEW_SEQUENCES, self._asleep_with // 2):
            self._asleep = 0
        return self._asleep > 0

    def lengths(self, num_sequences: int, offers: Sequence[Offer]) -> list[int]:
        """How many tokens to guess for each offer, in a step that decodes so many sequences."""
        ranked = _ranked(offers)
        count = self._best(num_sequences, ranked) if ranked else 0
        if count and self._is_to_be_plain(num_sequences):
            return [0] * len(offers)
        self._note_idle(num_sequences, count > 0)
        if ranked and self._idle % _DRAFT_EVERY == _DRAFT_EVERY - 1:
            count = min(len(ranked), num_sequences)
        lengths = [0] * len(offers)
        for _, index in ranked[:count]:
            lengths[index] += 1
        return lengths

    def _best(self, num_sequences: int, ranked: list[tuple[float, int]]) -> int:
        """How many of the likeliest tokens bring the most tokens in a second; now and then a few more, or fewer."""
        best, chosen = self._rate(num_sequences, 0, 0.0) * _MARGIN, -1
        gain, done = 0.0, 0
        candidates = _candidates(len(ranked))
        for index, candidate in enumerate(candidates):
            gain += sum(probability for probability, _ in ranked[done:candidate])
            done = candidate
            if (rate := self._rate(num_sequences, candidate, gain)) > best:
                best, chosen = rate, index
        if chosen < 0:
            return 0
        self._drafting += 1
        if self._drafting % _NEIGHBOUR_EVERY == 0:
            chosen += 1 if self._drafting // _NEIGHBOUR_EVERY % 2 else -1
        return candidates[max(0, min(chosen, len(candidates) - 1))]

    def _rate(self, num_sequences: int, num_rows: int, gain: float) -> float:
        """Tokens in a second; where nothing is known yet, drafts are tried."""
        seconds = self._costs.seconds(num_sequences, num_rows)
        return (num_sequences + gain) / seconds if seconds else gain

    def _is_to_be_plain(self, num_sequences: int) -> bool:
        """Now and then, and at first, so that what drafts cost is known."""
        if not self._plain_left:
            since = self._since_plain.get(num_sequences, 0) + 1
            if since <= _PLAIN_EVERY and self._costs.is_known(num_sequences):
                self._since_plain[num_sequences] = since
                return False
            self._since_plain[num_sequences] = 0
            self._plain_left = self._plain_steps
        self._plain_left -= 1
        return True

    def _note_idle(self, num_sequences: int, drafts: bool) -> None:
        if drafts:
            self._idle, self._next_sleep = 0, _FIRST_SLEEP
            return
        self._idle += 1
        if self._idle % _AWAKE == 0 and num_sequences > _FEW_SEQUENCES:
            self._asleep, self._asleep_with = self._next_sleep, num_sequences
            self._next_sleep = min(2 * self._next_sleep, _LONGEST_SLEEP)


def _ranked(offers: Sequence[Offer]) -> list[tuple[float, int]]:
    """(probability, index of its offer) of each token, the likeliest first; an offer's in their order."""
    ranked = []
    for index, (probability, following, most) in enumerate(offers):
        for _ in range(most):
            if probability < _LEAST_PROBABILITY:
                break
            ranked.append((probability, index))
            probability *= following
    ranked.sort(key=lambda entry: -entry[0])
    return ranked


def _candidates(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16 and so on, and a few more: each is a shape of steps that has to be recorded once."""
    found = {count for power in range(most.bit_length()) for count in (2**power, 3 * 2**power // 2) if count <= most}
    return sorted(found | {most} if most <= _FEW_ROWS else found)
