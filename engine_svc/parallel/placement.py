"""Which of a layer's experts each rank has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType


@dataclass(frozen=True)
class Placement:
    """The experts of each rank, in the order of its slots. One that has slots on several ranks shares its tokens."""

    slots: tuple[tuple[int, ...], ...]

    def ranks_of(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """By expert, where it is: ranks and their slots."""
        found: dict[int, list[tuple[int, int]]] = {}
        for rank, experts in enumerate(self.slots):
            for slot, expert in enumerate(experts):
                found.setdefault(expert, []).append((rank, slot))
        return found

    def copies(self) -> Counter[int]:
        """By expert, how many slots it has."""
        return Counter(expert for experts in self.slots for expert in experts)


def slot_counts(total: int, num_ranks: int) -> list[int]:
    """How many slots each rank has: as many as the others, or one more where that does not come out even.

    Raises:
        ValueError: some would have none.
    """
    if total < num_ranks:
        raise ValueError(f"the {total} experts of a layer cannot be dealt to {num_ranks} ranks")
    return [total // num_ranks + (rank < total % num_ranks) for rank in range(num_ranks)]


def linear(num_experts: int, num_ranks: int, redundant: int = 0) -> Placement:
    """Neighbouring experts together; the first ones have the slots beyond."""
    experts = [index % num_experts for index in range(num_experts + redundant)]
    ends = accumulate(slot_counts(len(experts), num_ranks), initial=0)
    return Placement(tuple(tuple(experts[first:last]) for first, last in pairwise(ends)))


def round_robin(num_experts: int, num_ranks: int, redundant: int = 0) -> Placement:
    """Neighbouring experts on different ranks: where experts are in groups of which few are chosen, those of one group
    are spread over all ranks."""
    slot_counts(num_experts + redundant, num_ranks)
    experts = [index % num_experts for index in range(num_experts + redundant)]
    return Placement(tuple(tuple(experts[rank::num_ranks]) for rank in range(num_ranks)))


STRATEGIES: Mapping[str, Callable[[int, int, int], Placement]] = MappingProxyType(
    {"linear": linear, "round_robin": round_robin}
)


@dataclass(frozen=True)
class ExpertSharing:
    """How the ranks of a stage share the experts of a layer, where each has some of them whole.

    Attributes:
        strategy: where experts are at first: see STRATEGIES.
        redundant: slots beyond one for each expert.
        exchange: how tokens get to experts on other data ranks: see layers/expert_exchange.py.
    """

    strategy: str = "linear"
    redundant: int = 0
    exchange: str = "alltoall"
