"""Expert-parallel load balancing: places experts so that all ranks have about equal load.

Redundant slots go to the experts with the most tokens per slot. Then the slots are dealt by Graham's rule (Bounds on
Multiprocessing Timing Anomalies, 1969): the heaviest first, each to the rank with the least load so far. DeepSeek's
balancer does the same if it does not distinguish nodes (github.com/deepseek-ai/EPLB).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from engine_svc.parallel.placement import Placement, linear


def rank_loads(loads: Sequence[float], placement: Placement) -> list[float]:
    """The load of each rank: an expert's slots share its tokens evenly.

    Args:
        loads: tokens of each expert.
    """
    copies = placement.copies()
    return [sum(loads[expert] / copies[expert] for expert in experts) for experts in placement.slots]


def balancedness(loads: Sequence[float], placement: Placement) -> float:
    """The mean of the ranks' loads divided by the greatest: 1 if all are equal."""
    found = rank_loads(loads, placement)
    return sum(found) / len(found) / max(found) if any(found) else 1.0


def rebalanced(loads: Sequence[float], now: Placement) -> Placement:
    """The best balanced of three placements: by the rule, the current one, and experts in their order.

    Each rank keeps its number of slots, and experts that stay on a rank keep their slots.
    """
    slots = sum(map(len, now.slots))
    dealt = _deal(loads, _copies(loads, slots, len(now.slots)), [len(each) for each in now.slots])
    candidates = [now, dealt, linear(len(loads), len(now.slots), slots - len(loads))]
    best = max(candidates, key=lambda each: balancedness(loads, each))
    return now if best is now else _settled(best, now)


def _copies(loads: Sequence[float], slots: int, num_ranks: int) -> list[int]:
    """How many slots each expert gets: one, then the remaining ones go to the greatest load per slot.

    More slots than ranks do not help an expert.
    """
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
    """Deals the heaviest copies first, each to the rank with the least load that has room and not this expert yet."""
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
    """Assigns the wanted sets of experts to ranks and slots such that few experts move; any rank can have any set."""
    shared, places = Counter[tuple[int, int]](), now.ranks_of()
    for index, experts in enumerate(wanted.slots):
        shared.update((index, rank) for expert in set(experts) for rank in {rank for rank, _ in places[expert]})
    pairs = [pair for pair, _ in sorted(shared.items(), key=lambda each: (-each[1], each[0]))]
    pairs += [(index, rank) for index in range(len(now.slots)) for rank in range(len(now.slots))]  # for remaining ones
    found: dict[int, int] = {}  # rank -> index of the set it gets
    taken: set[int] = set()
    for index, rank in pairs:
        if index not in taken and rank not in found and len(wanted.slots[index]) == len(now.slots[rank]):
            taken.add(index)
            found[rank] = index
    return Placement(tuple(_in_place(wanted.slots[found[rank]], held) for rank, held in enumerate(now.slots)))


def _in_place(wanted: Sequence[int], now: Sequence[int]) -> tuple[int, ...]:
    """Orders the wanted experts such that those already there keep their slots."""
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
    """A copy of an expert from the slot that has it now to another slot."""

    rank: int
    slot: int
    source_rank: int
    source_slot: int


def moves(now: Placement, wanted: Placement) -> list[Move]:
    """All moves from one placement to another, in the order of the receiving ranks and slots.

    The source is the same rank if it has the expert; otherwise the ranks that have it take turns.
    """
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
