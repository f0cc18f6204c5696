"""Which of a layer's experts each rank holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType


@dataclass(frozen=True)
class Placement:
    """The experts of each rank, in the order of its slots. An expert's tokens are shared among all of its slots."""

    slots: tuple[tuple[int, ...], ...]

    def ranks_of(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """The (rank, slot) pairs of each expert."""
        found: dict[int, list[tuple[int, int]]] = {}
        for rank, experts in enumerate(self.slots):
            for slot, expert in enumerate(experts):
                found.setdefault(expert, []).append((rank, slot))
        return found

    def copies(self) -> Counter[int]:
        """The number of slots of each expert."""
        return Counter(expert for experts in self.slots for expert in experts)


def slot_counts(total: int, num_ranks: int) -> list[int]:
    """How many slots each rank has: the same for all, or one more for the first ranks if that does not divide evenly.

    Raises:
        ValueError: some ranks would have none.
    """
    if total < num_ranks:
        raise ValueError(f"the {total} experts of a layer cannot be divided among {num_ranks} ranks")
    return [total // num_ranks + (rank < total % num_ranks) for rank in range(num_ranks)]


def linear(num_experts: int, num_ranks: int, redundant: int = 0) -> Placement:
    """Neighboring experts on the same rank; the redundant slots go to the first experts."""
    experts = [index % num_experts for index in range(num_experts + redundant)]
    ends = accumulate(slot_counts(len(experts), num_ranks), initial=0)
    return Placement(tuple(tuple(experts[first:last]) for first, last in pairwise(ends)))


def round_robin(num_experts: int, num_ranks: int, redundant: int = 0) -> Placement:
    """Neighboring experts on different ranks.

    If experts are in groups of which only a few are chosen, this spreads each group over all ranks.
    """
    slot_counts(num_experts + redundant, num_ranks)
    experts = [index % num_experts for index in range(num_experts + redundant)]
    return Placement(tuple(tuple(experts[rank::num_ranks]) for rank in range(num_ranks)))


STRATEGIES: Mapping[str, Callable[[int, int, int], Placement]] = MappingProxyType(
    {"linear": linear, "round_robin": round_robin}
)


@dataclass(frozen=True)
class ExpertSharing:
    """How the ranks of a stage share the experts of a layer if each rank holds whole experts.

    Attributes:
        strategy: the initial placement; see STRATEGIES.
        redundant: number of slots in addition to one for each expert.
        exchange: how tokens get to experts on other data ranks; see layers/expert_exchange.py.
    """

    strategy: str = "linear"
    redundant: int = 0
    exchange: str = "alltoall"
