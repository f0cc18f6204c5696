"""Decides how many tokens to draft for each sequence of a step: the numbers with the most tokens per second, or none.

A step without drafts produces one token per sequence. A drafted token adds one more with the probability that it and
all drafts before it are accepted, and costs as much as one more row in that step. Both are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_svc.speculative.step_costs import StepCosts, magnitude

# Drafting must promise this factor more tokens per second than not drafting, because neither is known exactly.
_MARGIN = 1.1
# Less likely tokens are not considered.
_LEAST_PROBABILITY = 0.05
# For each number of sequences, one in this many steps that would draft does not, to measure plain steps again.
_PLAIN_EVERY = 128
# A price is reused for this many steps; the cheapest row is searched among up to this many rows per sequence.
_PRICE_STEPS, _MOST_PRICED = 16, 16
# One in this many drafting steps drafts somewhat more or less than seems best, because the estimate relies on past
# measurements only.
_NEIGHBOUR_EVERY = 16
# Drafts that do not seem worthwhile are still tried from time to time, to measure their cost again: as often as this
# share of the steps pays for, given their estimated cost, after a wait of at least and at most this many steps.
_TRIED_SHARE = 0.01
_LEAST_WAIT, _LONGEST_WAIT = 32, 2048
# After this many steps in a row without drafts, guesses are only looked for in a few steps of each period: rarely
# enough to cost nothing, and often enough to follow a changing load. Steps with few sequences always look for them.
_AWAKE = 32
_PERIOD, _LOOKS = 32, 4
_FEW_SEQUENCES = 3
_FEW_ROWS = 6


class Offer(NamedTuple):
    """What could be drafted for a sequence."""

    first: float  # probability that the first token is accepted
    following: float  # probability for each further one, if those before it are
    most: int  # most tokens


class _Price(NamedTuple):
    """Price of drafted rows, from measurements."""

    least: float  # of the cheapest row, in tokens: a token less likely than this is never worth it
    of_try: float  # of one row per sequence, in steps without drafts


class _Regime:
    """State for steps of one magnitude: steps with many sequences say nothing about those with few, or vice versa."""

    __slots__ = ("asleep", "idle", "trying", "waited")

    def __init__(self) -> None:
        self.idle = 0  # consecutive steps that were considered and not worth drafting
        self.asleep = 0  # remaining steps for which no offers are needed
        self.waited = 0  # steps since drafts were worthwhile or tried
        self.trying = 0  # remaining steps of a try


class Controller:
    """Decides for one engine. Decisions are deterministic, given what it is told."""

    def __init__(self, costs: StepCosts, plain_steps: int, try_steps: int = 1) -> None:
        """
        Args:
            plain_steps: consecutive steps needed to measure what steps without drafts cost: more if they overlap.
            try_steps: consecutive steps needed to measure what drafts cost: more if the first ones must catch up.
        """
        self._costs = costs
        self._plain_steps = plain_steps
        self._plain_left = 0  # remaining steps without drafts, whatever is offered
        self._since_plain: dict[int, int] = {}  # number of sequences → steps with drafts since the last one without
        self._prices: dict[int, tuple[int, _Price]] = {}  # number of sequences → (remaining steps, price)
        self._drafting = 0  # steps that were worth drafting
        self._try_steps = try_steps
        self._regimes: dict[int, _Regime] = {}  # by magnitude

    def is_asleep(self, num_sequences: int) -> bool:
        """Whether nothing will be drafted in the next step, whatever is offered. Called once per step."""
        regime = self._regimes.setdefault(magnitude(num_sequences), _Regime())
        regime.waited += 1
        regime.asleep = max(0, regime.asleep - 1)
        return regime.asleep > 0

    def lengths(self, num_sequences: int, offers: Sequence[Offer]) -> list[int]:
        """How many tokens to draft for each offer, in a step that decodes this many sequences and is not asleep."""
        regime = self._regimes.setdefault(magnitude(num_sequences), _Regime())
        price = self._price(num_sequences)
        likeliest = max((offer.first for offer in offers), default=0.0)
        is_hopeless = likeliest <= price.least and not self._is_to_be_tried(regime, price.of_try - likeliest)
        ranked = [] if is_hopeless else _ranked(offers)
        count = self._best(num_sequences, ranked) if ranked else 0
        if count and self._is_to_be_plain(num_sequences):
            return [0] * len(offers)
        if count:
            regime.idle = regime.waited = regime.trying = 0
        elif ranked:
            count = self._tried(regime, num_sequences, price, ranked)
        if not count:
            self._note_idle(regime, num_sequences)
        lengths = [0] * len(offers)
        for _, index in ranked[:count]:
            lengths[index] += 1
        return lengths

    def _price(self, num_sequences: int) -> _Price:
        """The price of rows, recomputed every few steps."""
        left, price = self._prices.get(num_sequences, (0, _Price(0.0, 0.0)))
        if not left:
            left, price = _PRICE_STEPS, self._measured_price(num_sequences)
        self._prices[num_sequences] = left - 1, price
        return price

    def _measured_price(self, num_sequences: int) -> _Price:
        plain = self._costs.seconds(num_sequences, 0)
        if not plain:
            return _Price(0.0, 0.0)
        rows = _candidates(_MOST_PRICED * num_sequences)
        prices = ((self._costs.seconds(num_sequences, count) * _MARGIN / plain - 1) / count for count in rows)
        return _Price(num_sequences * min(prices), self._costs.seconds(num_sequences, num_sequences) / plain - 1)

    def _is_to_be_tried(self, regime: _Regime, loss: float) -> bool:
        """Whether enough steps passed without drafts to pay for a try, each step of which loses `loss` steps' time."""
        wait = min(max(_LEAST_WAIT, loss / _TRIED_SHARE), _LONGEST_WAIT)
        return regime.trying > 0 or regime.waited >= wait * self._try_steps

    def _tried(self, regime: _Regime, num_sequences: int, price: _Price, ranked: list[tuple[float, int]]) -> int:
        """How many tokens to draft as a try, although they do not seem worthwhile."""
        count = min(len(ranked), num_sequences)
        gain = sum(probability for probability, _ in ranked[:count]) / num_sequences
        if not self._is_to_be_tried(regime, price.of_try - gain):
            return 0
        regime.trying = (regime.trying or self._try_steps) - 1
        regime.waited = 0
        return count

    def _best(self, num_sequences: int, ranked: list[tuple[float, int]]) -> int:
        """How many of the likeliest tokens give the most tokens per second; sometimes a few more or fewer."""
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
        """Estimated tokens per second; while costs are unknown, the gain itself, so that drafts are tried."""
        seconds = self._costs.seconds(num_sequences, num_rows)
        return (num_sequences + gain) / seconds if seconds else gain

    def _is_to_be_plain(self, num_sequences: int) -> bool:
        """Whether this step skips drafts: at first and from time to time, so that the cost of plain steps is known."""
        if not self._plain_left:
            since = self._since_plain.get(num_sequences, 0) + 1
            if since <= _PLAIN_EVERY and self._costs.is_known(num_sequences):
                self._since_plain[num_sequences] = since
                return False
            self._since_plain[num_sequences] = 0
            self._plain_left = self._plain_steps
        self._plain_left -= 1
        return True

    def _note_idle(self, regime: _Regime, num_sequences: int) -> None:
        regime.idle += 1
        if regime.idle >= _AWAKE and regime.idle % _LOOKS == 0 and num_sequences > _FEW_SEQUENCES:
            regime.asleep = _PERIOD - _LOOKS


def _ranked(offers: Sequence[Offer]) -> list[tuple[float, int]]:
    """(probability, index of its offer) of each token, likeliest first; tokens of an offer stay in order."""
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
    """Candidate numbers of rows up to `most`. Only a few, because each is a step shape that must be captured once."""
    powers = {2**power for power in range(most.bit_length())}
    return sorted({*powers, *range(1, min(most, _FEW_ROWS) + 1)})
