"""Where experts should be placed, and which moves lead there."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine_svc.parallel.balance import balancedness, moves, rank_loads, rebalanced
from engine_svc.parallel.placement import STRATEGIES, Placement, linear


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], Placement]:
    """Draws the tokens of each expert, and a placement of the experts."""
    count, ranks, redundant = draw(st.integers(1, 24)), draw(st.integers(1, 6)), draw(st.integers(0, 6))
    placed = STRATEGIES[draw(st.sampled_from(sorted(STRATEGIES)))](max(count, ranks), ranks, redundant)
    loads = draw(st.lists(st.integers(0, 10**6), min_size=max(count, ranks), max_size=max(count, ranks)))
    if draw(st.booleans()):  # as left by an earlier rearrangement
        placed = rebalanced(loads[::-1], placed)
    return loads, placed


@given(cases())
def test_every_expert_is_placed_and_no_rank_has_more_slots(case: tuple[list[int], Placement]) -> None:
    loads, now = case
    wanted = rebalanced(loads, now)
    assert wanted.copies().keys() == set(range(len(loads)))
    assert [len(each) for each in wanted.slots] == [len(each) for each in now.slots]


@given(cases())
def test_it_is_never_worse_than_what_is_there_or_experts_in_order(case: tuple[list[int], Placement]) -> None:
    loads, now = case
    wanted = rebalanced(loads, now)
    slots = sum(map(len, now.slots))
    in_order = linear(len(loads), len(now.slots), slots - len(loads))
    found = balancedness(loads, wanted)
    assert found >= balancedness(loads, now) - 1e-9
    assert found >= balancedness(loads, in_order) - 1e-9
    assert abs(sum(rank_loads(loads, wanted)) - sum(loads)) <= 1e-6 * max(1, sum(loads))


@given(cases())
def test_moves_bring_what_is_wanted(case: tuple[list[int], Placement]) -> None:
    loads, now = case
    wanted = rebalanced(loads, now)
    slots = [list(each) for each in now.slots]
    planned = moves(now, wanted)
    for move in planned:
        slots[move.rank][move.slot] = now.slots[move.source_rank][move.source_slot]
    assert slots == [list(each) for each in wanted.slots]
    assert all((move.rank, move.slot) != (move.source_rank, move.source_slot) for move in planned)
    assert rebalanced(loads, wanted) == wanted  # a second run moves nothing
    arrivals = [Counter(after) - Counter(before) for before, after in zip(now.slots, wanted.slots, strict=True)]
    assert len(planned) == sum(each.total() for each in arrivals)  # experts that stay on a rank keep their slots


def test_skewed_loads_come_out_even() -> None:
    loads, now = [900, 500, 300, 100, 50, 50, 50, 50], linear(8, 4, 4)
    assert balancedness(loads, now) < 0.6
    assert balancedness(loads, rebalanced(loads, now)) > 0.85  # the optimum with three slots per rank
