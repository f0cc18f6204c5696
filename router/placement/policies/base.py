"""The interface of routing policies: what they see and what they must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.options.router import PlacementCostOptions
from router.workers.load_table import Figures

Counts = NDArray[np.float64]  # whole numbers, as floats because they are combined with seconds
_Item = TypeVar("_Item", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request that needs a worker."""

    request_id: str
    # Empty when the caller named none and there is only one model.
    model: str
    prompt_tokens: int
    # Sequences generated from the prompt, at least 1.
    sequences: int
    # Expected number of output tokens of each sequence.
    output_tokens: float
    tenant: str = ""
    # The tenant's share of a queue, relative to other tenants.
    tenant_weight: float = 1.0
    # Identifies the conversation; empty when the caller named none.
    session_id: str = ""
    priority: int = 0
    # Tokens that it has generated already; the worker that continues it computes them again with its prompt.
    generated_tokens: int = 0

    @property
    def known_tokens(self) -> int:
        """All tokens that must be computed, or found in a cache, before generation continues."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(slots=True, eq=False)
class Candidates:
    """The workers that could take the request, as they are now: their last heartbeats, corrected by what this router
    has placed and finished since. Each array has an entry per worker; None stands for all zeros."""

    # Rows as in router/workers/load_table.py. Read-only, and valid only until the next placement.
    figures: Figures
    # Hashes of the workers' addresses.
    homes: NDArray[np.uint64]
    # How many of the prompt's tokens each worker has cached, or will by the time the request arrives: on the device,
    # and following those in host memory.
    cached_tokens: Counts
    host_cached_tokens: Counts | None
    # Tokens that the worker would have to compute although another one is about to, and no worker has cached yet.
    duplicate_tokens: Counts | None
    # Whether the request names an adapter that the worker must load onto the device first.
    lacks_adapter: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.homes)

    @property
    def known_tokens(self) -> Counts:
        """How many of the prompt's tokens each worker has cached, in either tier."""
        in_host = self.host_cached_tokens
        return self.cached_tokens if in_host is None else self.cached_tokens + in_host

    def take(self, places: NDArray[np.intp]) -> Candidates:
        """A copy of the entries at these indices, which stays valid."""

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

    # Whether the policy uses what workers have cached; otherwise it is not looked up.
    uses_cache: ClassVar[bool] = False

    def __init__(self, weights: PlacementCostOptions, random: Random) -> None:
        """
        Args:
            weights: used by policies that compare costs.
            random: used by policies that draw at random.
        """
        self.weights = weights
        self.random = random

    @abstractmethod
    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        """Picks the worker to use; returns its index among the candidates.

        Args:
            candidates: at least one, in the order in which the workers became known.
        """
