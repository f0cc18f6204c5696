"""How many tokens to guess for each sequence of a step: as many as make the most tokens in a second, or none.

A step without drafts brings a token of each sequence. A drafted token brings one more with the probability that it and
all before it are right, and costs what a row more costs there. Both are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_svc.speculative.step_costs import StepCosts, magnitude

# Guessing has to promise so much more than not guessing, for neither is known exactly.
_MARGIN = 1.1
# Less likely tokens are not considered.
_LEAST_PROBABILITY = 0.05
# Of the steps with so many sequences that draft one in so many does not, to see what that costs now.
_PLAIN_EVERY = 128
# The price of a row holds for so many steps, and is that of the cheapest of so many rows of each sequence.
_PRICE_STEPS, _MOST_PRICED = 16, 16
# One in so many drafts somewhat more or less than seems best, for that follows from what was measured alone.
_NEIGHBOUR_EVERY = 16
# Where drafts are not worth it, the step after so many does, to see what that brings now; then it is twice as many, up
# to so many times.
_FIRST_PROBE, _LONGEST_PROBE = 128, 16
# Where so many steps in a row have drafted nothing, guesses are looked for in a few steps of each period alone: seldom
# enough to cost nothing, and often enough for a load that changes. Few sequences are looked at always.
_AWAKE = 32
_PERIOD, _LOOKS = 32, 4
_FEW_SEQUENCES = 3
_FEW_ROWS = 6


class Offer(NamedTuple):
    """What might be guessed for a sequence."""

    first: float  # probability that the first token is right
    following: float  # and that a further one is, if those before it are
    most: int  # tokens


class _Regime:
    """What has come of deciding for steps of one magnitude: many sequences say nothing of few, nor these of many."""

    __slots__ = ("asleep", "idle", "probe_every", "probe_in")

    def __init__(self, first_probe: int) -> None:
        self.idle = 0  # steps in a row that were looked at and not worth drafting
        self.asleep = 0  # steps for which nothing need be offered
        self.probe_every = self.probe_in = first_probe


class Controller:
    """Decides for one engine. Its decisions follow from what it is told alone."""

    def __init__(self, costs: StepCosts, plain_steps: int, probe_steps: int = 1) -> None:
        """
        Args:
            plain_steps: in a row that tell what steps without drafts cost: more than one where they overlap.
            probe_steps: in a row that tell what drafts bring: more than one where it takes some to get going.
        """
        self._costs = costs
        self._plain_steps = plain_steps
        self._plain_left = 0  # steps that stay plain, whatever is offered
        self._since_plain: dict[int, int] = {}  # number of sequences → steps with drafts since the last without
        self._prices: dict[int, tuple[int, float]] = {}  # number of sequences → steps that a row's price holds for, it
        self._drafting = 0  # steps that were worth drafting
        self._probe_steps = probe_steps
        self._first_probe = _FIRST_PROBE * probe_steps
        self._regimes: dict[int, _Regime] = {}  # by magnitude

    def _regime(self, num_sequences: int) -> _Regime:
        key = magnitude(num_sequences)
        if key not in self._regimes:
            self._regimes[key] = _Regime(self._first_probe)
        return self._regimes[key]

    def is_asleep(self, num_sequences: int) -> bool:
        """Whether nothing will be guessed for the next step, whatever is offered. Called once for each step."""
        regime = self._regime(num_sequences)
        if regime.asleep:
            regime.asleep -= 1
        elif regime.probe_in > 1 and self._price(num_sequences) >= 1.0:  # no token is worth it, however likely
            regime.probe_in -= 1
            return True
        return regime.asleep > 0

    def lengths(self, num_sequences: int, offers: Sequence[Offer]) -> list[int]:
        """How many tokens to guess for each offer, in a step that decodes so many sequences."""
        regime = self._regime(num_sequences)
        is_hopeless = max((offer.first for offer in offers), default=0.0) <= self._price(num_sequences)
        ranked = [] if is_hopeless and regime.probe_in > 1 else _ranked(offers)
        count = self._best(num_sequences, ranked) if ranked else 0
        if count and self._is_to_be_plain(num_sequences):
            return [0] * len(offers)
        self._note_idle(regime, num_sequences, count > 0)
        if offers and not count and self._is_to_be_probed(regime):
            count = min(len(ranked), num_sequences)
        lengths = [0] * len(offers)
        for _, index in ranked[:count]:
            lengths[index] += 1
        return lengths

    def _price(self, num_sequences: int) -> float:
        """Of the cheapest row, in tokens: those less likely are never worth it. Worked out anew now and then."""
        left, price = self._prices.get(num_sequences, (0, 0.0))
        if not left:
            left, price = _PRICE_STEPS, self._cheapest_row(num_sequences)
        self._prices[num_sequences] = left - 1, price
        return price

    def _cheapest_row(self, num_sequences: int) -> float:
        plain = self._costs.seconds(num_sequences, 0)
        if not plain:
            return 0.0
        rows = _candidates(_MOST_PRICED * num_sequences)
        prices = ((self._costs.seconds(num_sequences, count) * _MARGIN / plain - 1) / count for count in rows)
        return num_sequences * min(prices)

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

    def _is_to_be_probed(self, regime: _Regime) -> bool:
        """Whether drafts are tried though they are not worth it; called for each such step."""
        regime.probe_in -= 1
        if regime.probe_in > 0:
            return False
        if regime.probe_in <= 1 - self._probe_steps:  # it is the last of this time
            regime.probe_every = min(2 * regime.probe_every, _LONGEST_PROBE * self._first_probe)
            regime.probe_in = regime.probe_every
        return True

    def _note_idle(self, regime: _Regime, num_sequences: int, drafts: bool) -> None:
        if drafts:
            regime.idle = 0
            regime.probe_in = regime.probe_every = self._first_probe
            return
        regime.idle += 1
        if regime.idle >= _AWAKE and regime.idle % _LOOKS == 0 and num_sequences > _FEW_SEQUENCES:
            regime.asleep = _PERIOD - _LOOKS


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
    """A few numbers of rows up to one: each makes a shape of steps that has to be recorded once."""
    powers = {2**power for power in range(most.bit_length())}
    return sorted({*powers, *range(1, min(most, _FEW_ROWS) + 1)})
