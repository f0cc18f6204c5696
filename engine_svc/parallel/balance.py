"""Where experts are to be, so that ranks have as much to do as each other.

Slots beyond one for each expert go to those with the most tokens for each of theirs; then the slots are dealt by
Graham's rule (Bounds on Multiprocessing Timing Anomalies, 1969): the heaviest first, each to the rank with the least so
far. It is what DeepSeek's balancer does where ranks are not told apart by their nodes (github.com/deepseek-ai/EPLB).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from engine_svc.parallel.placement import Placement, linear


def rank_loads(loads: Sequence[float], placement: Placement) -> list[float]:
    """What each rank has to do: an expert's slots share its tokens evenly.

    Args:
        loads: tokens of each expert.
    """
    copies = placement.copies()
    return [sum(loads[expert] / copies[expert] for expert in experts) for experts in placement.slots]


def balancedness(loads: Sequence[float], placement: Placement) -> float:
    """The mean of the ranks' loads, of the greatest of them: 1 where all have the same."""
    found = rank_loads(loads, placement)
    return sum(found) / len(found) / max(found) if any(found) else 1.0


def rebalanced(loads: Sequence[float], now: Placement) -> Placement:
    """The best balanced of what the rule brings, what there is, and experts in their order; with as many slots on each
    rank, and experts that stay on a rank in their slots."""
    slots = sum(map(len, now.slots))
    dealt = _deal(loads, _copies(loads, slots, len(now.slots)), [len(each) for each in now.slots])
    candidates = [now, dealt, linear(len(loads), len(now.slots), slots - len(loads))]
    best = max(candidates, key=lambda each: balancedness(loads, each))
    return now if best is now else _settled(best, now)


def _copies(loads: Sequence[float], slots: int, num_ranks: int) -> list[int]:
    """How many slots each expert has: one, and those that are left to where a slot has most to do. More than there are
    ranks bring nothing."""
    copies = [1] * len(loads)
    heaviest = [(-load, expert) for expert, load in enumerate(loads)]
    heapify(heaviest)
    for _ in range(slots - len(loads)):
        expert = heaviest[0][1]
        copies[expert] += 1
        next_load = loads[expert] / copies[expert] if copies[expert] < num_ranks else -1.0
        heapreplace(heaviest, (-next_load, expert))
    return copies


def _deal(loads: Sequence[float], copies: Sequence[int], room: Sequence[int]) -> Placement:
    """The heaviest copies first, each to the rank with the least to do of those that have room and not this expert."""
    dealt: list[list[int]] = [[] for _ in room]
    filled = [0.0] * len(room)
    shares = [(-loads[expert] / count, expert) for expert, count in enumerate(copies) for _ in range(count)]
    for load, expert in sorted(shares):
        open_ranks = [rank for rank, experts in enumerate(dealt) if len(experts) < room[rank]]
        fresh = [rank for rank in open_ranks if expert not in dealt[rank]]
        rank = min(fresh or open_ranks, key=lambda each: (filled[each], each))
        dealt[rank].append(expert)
        filled[rank] -= load
    return Placement(tuple(map(tuple, dealt)))


def _settled(wanted: Placement, now: Placement) -> Placement:
    """The same, by ranks and slots such that few experts move: which rank has which set of them does not matter."""
    shared, places = Counter[tuple[int, int]](), now.ranks_of()
    for index, experts in enumerate(wanted.slots):
        shared.update((index, rank) for expert in set(experts) for rank in {rank for rank, _ in places[expert]})
    pairs = [pair for pair, _ in sorted(shared.items(), key=lambda each: (-each[1], each[0]))]
    pairs += [(index, rank) for index in range(len(now.slots)) for rank in range(len(now.slots))]  # for those left over
    found: dict[int, int] = {}  # rank -> whose set it gets
    taken: set[int] = set()
    for index, rank in pairs:
        if index not in taken and rank not in found and len(wanted.slots[index]) == len(now.slots[rank]):
            taken.add(index)
            found[rank] = index
    return Placement(tuple(_in_place(wanted.slots[found[rank]], held) for rank, held in enumerate(now.slots)))


def _in_place(wanted: Sequence[int], now: Sequence[int]) -> tuple[int, ...]:
    """Those that are there stay in their slots."""
    coming = Counter(wanted) - Counter(now)
    staying, arrivals = Counter(wanted) & Counter(now), iter(coming.elements())
    slots = []
    for expert in now:
        stays = staying[expert] > 0
        staying[expert] -= stays
        slots.append(expert if stays else next(arrivals))
    return tuple(slots)


@dataclass(frozen=True)
class Move:
    """What a slot gets from another one, which has it now."""

    rank: int
    slot: int
    source_rank: int
    source_slot: int


def moves(now: Placement, wanted: Placement) -> list[Move]:
    """All that it takes, by the ranks and slots that get something. Sources are the same rank's where it has the
    expert, else those who have it in turn."""
    sources, taken, found = now.ranks_of(), Counter[int](), []
    for rank, experts in enumerate(wanted.slots):
        for slot, expert in enumerate(experts):
            if now.slots[rank][slot] == expert:
                continue
            own = [place for place in sources[expert] if place[0] == rank]
            place = (own or sources[expert])[taken[expert] % len(own or sources[expert])]
            taken[expert] += not own
            found.append(Move(rank, slot, *place))
    return found
