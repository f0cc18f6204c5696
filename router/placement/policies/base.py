"""What a routing policy sees and what it must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.options.router import PlacementCostOptions
from router.workers.load_table import Figures

Counts = NDArray[np.float64]  # whole numbers, reckoned with beside seconds
_Item = TypeVar("_Item", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request that needs a worker."""

    request_id: str
    # Empty when the caller named none and there is only one.
    model: str
    prompt_tokens: int
    # Sequences generated from the prompt, at least 1.
    sequences: int
    # Tokens that each of them is expected to have.
    output_tokens: float
    tenant: str = ""
    # Names the conversation; empty when the caller did not.
    session_id: str = ""
    priority: int = 0
    # That it has already; where it goes on, they are computed again with its prompt.
    generated_tokens: int = 0

    @property
    def known_tokens(self) -> int:
        """All that is computed, or found in a cache, before it goes on."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(slots=True, eq=False)
class Candidates:
    """The workers that could take the request, as they are now: their last heartbeats, corrected by what this router
    has placed and finished since. Arrays have an entry for each of them, and are None where all would be 0."""

    # Rows as in router/workers/load_table.py. To be read only, and before anything else is placed.
    figures: Figures
    # Hashes of their addresses.
    homes: NDArray[np.uint64]
    # How many of the prompt's tokens each holds in its cache, or will before the request gets there: on the device, and
    # behind those in host memory.
    cached_tokens: Counts
    host_cached_tokens: Counts | None
    # Tokens that it would have to compute although another worker is about to, and nobody has them yet.
    duplicate_tokens: Counts | None
    # Whether the request names an adapter that has to be brought to the device first.
    lacks_adapter: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.homes)

    def known_tokens(self, place: int) -> int:
        """Of the prompt, those that one of them has cached."""
        in_host = self.host_cached_tokens
        return int(self.cached_tokens[place] + (0 if in_host is None else in_host[place]))

    def take(self, places: NDArray[np.intp]) -> Candidates:
        """Some of them, to be kept."""

        def of(array: NDArray[_Item] | None) -> NDArray[_Item] | None:
            return None if array is None else array[places]

        return Candidates(
            self.figures[:, places], self.homes[places], self.cached_tokens[places], of(self.host_cached_tokens),
            of(self.duplicate_tokens), of(self.lacks_adapter),
        )  # fmt: skip


class Policy(ABC):
    """Picks a worker for each request.

    Contract: called on the event loop for every request, so it neither waits nor grows without bound. It may keep
    state between calls; workers come and go, so it must not rely on having seen one before.
    """

    # Whether it looks at what workers have cached; else nobody looks it up.
    uses_cache: ClassVar[bool] = False

    def __init__(self, weights: PlacementCostOptions, random: Random) -> None:
        """
        Args:
            weights: for policies that compare costs.
            random: for those that draw.
        """
        self.weights = weights
        self.random = random

    @abstractmethod
    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        """The worker to use, by its place among the candidates.

        Args:
            candidates: at least one, in the order in which the workers became known.
        """
