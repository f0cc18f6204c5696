"""What a routing policy sees and what it must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, NamedTuple

from quire.options.router import PlacementCostOptions
from router.workers.speed import DEFAULT_SECONDS_PER_STEP, DEFAULT_SECONDS_PER_TOKEN


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


class Candidate(NamedTuple):
    """A worker that could take the request, as it is now: its last heartbeat, corrected by what this router has placed
    and finished since."""

    address: str
    # How many of the prompt's tokens it holds in its cache, or will before the request gets there: on the device, and
    # behind those in host memory.
    cached_tokens: int = 0
    host_cached_tokens: int = 0
    # Sequences running or waiting, and how many run at once (0 where it does not tell).
    sequences: int = 0
    max_sequences: int = 0
    # Prompt tokens still to be computed.
    prefill_tokens: int = 0
    # Share of the KV blocks held by live sequences, from 0 to 1.
    kv_usage: float = 0.0
    # Its speed: see router/workers/speed.py.
    seconds_per_step: float = DEFAULT_SECONDS_PER_STEP
    seconds_per_token: float = DEFAULT_SECONDS_PER_TOKEN
    # Number of this router's last placement there, which counts up over all workers; 0 for none.
    last_placed: int = 0
    # Tokens that it would have to compute although another worker is about to, and nobody has them yet.
    duplicate_tokens: int = 0
    # The request names an adapter that has to be brought to the device first.
    lacks_adapter: bool = False


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
    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        """The worker to use.

        Args:
            candidates: at least one, in the order in which the workers became known.

        Returns:
            One of `candidates`.
        """
