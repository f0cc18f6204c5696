"""How many tokens are drafted, for made-up step costs and acceptance rates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from engine_svc.speculative.acceptance import Acceptance, sequence_rate
from engine_svc.speculative.controller import Controller, Offer
from engine_svc.speculative.step_costs import StepCosts, magnitude
from tests.support.for_each import for_each

Price = Callable[[int, int], float]  # sequences, drafted rows → seconds


def memory_bound(sequences: int, rows: int) -> float:
    """A GPU, or a CPU with few rows: reading the weights takes most of the time."""
    return 0.020 + 0.0001 * (sequences + rows)


def compute_bound(sequences: int, rows: int) -> float:
    """Every row costs the same."""
    return 0.001 * (sequences + rows)


def stepped(sequences: int, rows: int) -> float:
    """A few rows cost more than one, and then the same up to 16."""
    return 0.010 * (1 if sequences + rows == 1 else 1.4 + 0.9 * ((sequences + rows - 1) // 16))


def settled(price: Price, sequences: int, offer: Offer, steps: int = 600, noise: float = 0.0) -> list[int]:
    """Returns the tokens drafted in each step of an engine whose sequences all get the same offer."""
    source = random.Random(1)
    costs = StepCosts()
    controller, chosen = Controller(costs, plain_steps=1), []
    for _ in range(steps):
        asleep = controller.is_asleep(sequences)
        rows = 0 if asleep else sum(controller.lengths(sequences, [offer] * sequences))
        costs.note(sequences, rows, price(sequences, rows) * (1 + noise * source.random()))
        chosen.append(rows)
    return chosen


def throughput(price: Price, sequences: int, offer: Offer, rows: list[int]) -> float:
    """Returns the expected tokens per second."""
    tokens = seconds = 0.0
    for count, steps in Counter(rows).items():
        tokens += steps * sequences
        for index in range(sequences):
            probability = offer.first
            for _ in range(count // sequences + (index < count % sequences)):
                tokens += steps * probability
                probability *= offer.following
        seconds += steps * price(sequences, count)
    return tokens / seconds


@pytest.mark.parametrize("price", [memory_bound, compute_bound, stepped])
@pytest.mark.parametrize("sequences", [1, 2, 8, 32, 100])
@for_each("rate", [0.02, 0.3, 0.6, 0.9, 0.99])
@for_each("noise", [0.0, 0.3])
def test_it_pays_or_it_stops(price: Price, sequences: int, rate: float, noise: float) -> None:
    """No load is more than 2 % slower than without drafts; where much can be gained, at least half of it is."""
    offer = Offer(rate, rate, 8)
    rows = settled(price, sequences, offer, noise=noise)[100:]
    plain = sequences / price(sequences, 0)
    reached = throughput(price, sequences, offer, rows)
    best = max(throughput(price, sequences, offer, [sequences * length]) for length in range(9))
    assert reached > 0.98 * plain
    if best > 1.3 * plain and not noise:
        assert reached > plain + 0.5 * (best - plain)


def test_an_engine_measures_before_it_drafts_and_again_now_and_then() -> None:
    rows = settled(memory_bound, 1, Offer(0.9, 0.9, 4), steps=1000)
    assert rows[0] == 0
    assert 0.005 < rows.count(0) / len(rows) < 0.02


@pytest.mark.parametrize("sequences", [2, 32])
def test_what_misses_is_tried_again_now_and_then(sequences: int) -> None:
    """Drafting resumes although a row's cost was once measured far too high."""
    costs = StepCosts()
    controller = Controller(costs, plain_steps=1)
    for _ in range(20):
        costs.note(sequences, 0, 0.01)
        costs.note(sequences, sequences, 0.02)
    drafted = []
    for _ in range(700):
        asleep = controller.is_asleep(sequences)
        rows = 0 if asleep else sum(controller.lengths(sequences, [Offer(0.9, 0.9, 4)] * sequences))
        costs.note(sequences, rows, 0.01)
        drafted.append(rows)
    assert not any(drafted[:31])
    assert all(drafted[-10:])


def test_the_likeliest_tokens_of_all_sequences_are_taken() -> None:
    costs = StepCosts()
    for sequences, rows in [(1, 0), (8, 0), (16, 0), (8, 1), (8, 4), (8, 16)] * 4:
        costs.note(sequences, rows, compute_bound(sequences, rows) + 0.004)
    offers = [Offer(0.95, 0.95, 6), *[Offer(0.2, 0.5, 6)] * 6, Offer(0.6, 0.99, 6)]
    lengths = Controller(costs, plain_steps=1).lengths(8, offers)
    assert lengths[0] > 3
    assert lengths[0] > max(lengths[1:7])


def test_many_sequences_for_which_nothing_is_guessed_are_not_even_looked_at() -> None:
    controller = Controller(StepCosts(), plain_steps=1)
    looked = 0
    for _ in range(5000):
        if not controller.is_asleep(32):
            looked += 1
            assert not any(controller.lengths(32, []))
    assert looked < 5000 / 7
    for _ in range(5):
        assert not controller.is_asleep(2)  # with few sequences left, it looks at once


@pytest.mark.parametrize("worthless", [1, 10, 100, 10_000])
def test_a_load_that_begins_to_be_worth_guessing_for_is_noticed_at_once(worthless: int) -> None:
    costs = StepCosts()
    for rows in (0, 32, 128):
        for _ in range(4):
            costs.note(32, rows, memory_bound(32, rows))
    controller = Controller(costs, plain_steps=1)
    for _ in range(worthless):
        controller.is_asleep(32) or controller.lengths(32, [])
    chosen = [
        0 if controller.is_asleep(32) else sum(controller.lengths(32, [Offer(0.9, 0.9, 4)] * 32)) for _ in range(40)
    ]
    assert all(chosen[36:])


def test_few_that_are_guessed_for_in_between_do_not_wake_many() -> None:
    """Drafting for a batch's last few sequences says nothing about the next batch."""
    costs = StepCosts()
    for sequences in (1, 32):
        for _ in range(4):
            costs.note(sequences, 0, memory_bound(sequences, 0))
            costs.note(sequences, sequences, memory_bound(sequences, sequences))
    controller, looked, drafted = Controller(costs, plain_steps=1), 0, 0
    for _ in range(50):
        for _ in range(100):
            if not controller.is_asleep(32):
                looked += 1
                controller.lengths(32, [])
        for _ in range(5):
            assert not controller.is_asleep(1)
            drafted += sum(controller.lengths(1, [Offer(0.9, 0.9, 4)]))
    assert drafted > 200
    assert looked < 5000 / 7


def test_where_no_row_is_worth_its_price_it_is_tried_as_seldom_as_it_seems_dear() -> None:
    costs = StepCosts()
    for rows, seconds in [(0, 0.010)] * 4 + [(32, 0.040)] * 4:
        costs.note(32, rows, seconds)
    controller, looked, drafted = Controller(costs, plain_steps=1), 0, 0
    for _ in range(1000):
        if not controller.is_asleep(32):
            looked += 1
            drafted += any(controller.lengths(32, [Offer(1.0, 1.0, 4)] * 32))
    assert looked < 1000 / 6
    assert 2 <= drafted <= 5


def test_steps_that_overlap_are_measured_in_a_row() -> None:
    costs = StepCosts()
    controller = Controller(costs, plain_steps=4)
    lengths = []
    for _ in range(6):
        (length,) = controller.lengths(1, [Offer(0.9, 0.9, 3)])
        costs.note(1, length, memory_bound(1, length))
        lengths.append(length)
    assert [bool(length) for length in lengths] == [False] * 4 + [True] * 2


def test_costs_are_those_of_steps_like_it() -> None:
    costs = StepCosts()
    assert costs.seconds(4, 0) == costs.seconds(4, 3) == 0
    assert not costs.is_known(4)
    for sequences in (1, 2, 4, 8, 16, 32):
        for _ in range(5):
            costs.note(sequences, 0, 0.005 + 0.001 * sequences)
    assert costs.is_known(4)
    assert costs.seconds(12, 0) == pytest.approx(0.017)
    assert costs.seconds(4, 4) > costs.seconds(4, 0)  # a row is assumed to cost something before it is measured
    for rows in (4, 16):
        for _ in range(5):
            costs.note(4, rows, 0.009 + 0.0005 * rows)
    assert costs.seconds(4, 10) == pytest.approx(0.014)
    assert costs.seconds(4, 2) == pytest.approx(0.010)


def test_drafts_are_priced_beside_prompts_too() -> None:
    """With many short answers, nearly every step contains a prompt."""
    costs = StepCosts()
    assert not costs.note(32, 8, 0.030, 40)
    for _ in range(4):
        assert costs.note(32, 0, 0.010)
    assert not costs.note(32, 8, 0.030, 40)  # the cost of the prompts is not known yet
    for _ in range(4):
        assert costs.note(32, 0, 0.015, 40)
    for _ in range(4):
        assert costs.note(32, 8, 0.023, 40)
    assert costs.seconds(32, 0) == pytest.approx(0.010)
    assert costs.seconds(32, 8) == pytest.approx(0.018)
    for _ in range(4):
        assert costs.note(32, 0, 0.500, 4000)
    assert not costs.note(32, 8, 0.700, 4000)  # a long prompt's time varies by more than drafts cost
    assert costs.seconds(32, 8) == pytest.approx(0.018)


def test_a_batch_that_loses_a_few_sequences_is_what_it_was() -> None:
    assert {magnitude(number) for number in range(24, 46)} == {5}
    assert [magnitude(number) for number in (0, 1, 2, 3, 4, 8, 16)] == [0, 0, 1, 2, 2, 3, 4]


def test_what_drafts_of_many_owe_few_do_not_pay() -> None:
    costs = StepCosts()
    for _ in range(4):
        costs.note(1, 0, 0.001)
        costs.note(32, 0, 0.010)
    costs.owe(32, 5.0)
    for _ in range(4):
        costs.note(1, 4, 0.002)
        costs.note(32, 4, 0.011)
    assert costs.seconds(1, 4) == pytest.approx(0.002)
    assert costs.seconds(32, 4) > 0.05


def test_a_pause_of_the_machine_is_no_price() -> None:
    costs = StepCosts()
    costs.note(2, 0, 1.0)
    for number in range(50):
        costs.note(2, 0, 5.0 if number % 3 == 0 else 0.01)
        costs.note(2, 4, 7.0 if number % 4 == 0 else 0.012)
    assert costs.seconds(2, 0) == pytest.approx(0.010)
    assert costs.seconds(2, 4) == pytest.approx(0.012)


def test_rates_by_kind_and_by_sequence() -> None:
    acceptance, good, bad = Acceptance(), sequence_rate(), sequence_rate()
    before = acceptance.rates(3, sequence_rate())
    for _ in range(40):
        acceptance.note(3, good, 4, 4)
        acceptance.note(5, bad, 4, 0)
    assert acceptance.rates(3, sequence_rate())[0] > max(0.85, before[0])
    assert acceptance.rates(3, sequence_rate())[1] > 0.9
    assert acceptance.rates(5, sequence_rate())[0] < 0.2
    assert acceptance.rates(3, bad)[0] < acceptance.rates(3, good)[0]
    assert acceptance.rates(4, sequence_rate()) == Acceptance().rates(4, sequence_rate())


def test_what_was_long_ago_counts_little() -> None:
    acceptance, rate = Acceptance(), sequence_rate()
    for right in (1, 0):
        for _ in range(600):
            acceptance.note(0, rate, 1, right)
    assert acceptance.rates(0, rate)[0] < 0.1
