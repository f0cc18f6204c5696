"""A request as placement sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.index.prefix_index import ExpectedBlocks
from router.placement.policies.base import RouteRequest
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.ready_set import Naming

if TYPE_CHECKING:
    from quire.v1 import common_pb2


@dataclass(eq=False, slots=True)
class RoutedRequest:
    """What a request runs, on which worker, and what the router expects of it there."""

    request: RouteRequest
    assignment: Assignment
    # Clock times of its arrival and of its deadline; None means no deadline.
    arrived: float
    deadline: float | None
    # Keys of the full blocks of all its known tokens, for each naming in use among the workers; filled on first use.
    keys: dict[Naming, Sequence[int]] = field(default_factory=dict)
    # The worker it runs on.
    worker: Worker | None = None
    # The router's id for it on the worker's session. Each attempt gets a new one, so that nothing of an earlier attempt
    # is taken for a later one's.
    worker_stream_id: int = 0
    # Tokens that the worker gets with it, and how many of them it has to compute; the latter is 0 once the first delta
    # has arrived.
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    # Blocks that the index expects it to leave on the worker, and how many prompt tokens the worker was believed to
    # have cached.
    expected: ExpectedBlocks | None = None
    predicted_tokens: int | None = None
    # Attempts so far, and attempts in a row without a token; the worker that it was taken from, until when to avoid
    # that one, and the make of the last worker.
    attempts: int = 0
    fruitless: int = 0
    avoid: Worker | None = None
    avoid_until: float = 0.0
    make: str = ""
    # What the worker reported that handed it over, having computed its prompt and saved the blocks; None until then.
    prefill_usage: common_pb2.GenerationUsage | None = None
    # Whether its first delta from its current worker has arrived.
    started: bool = False

    @property
    def is_prefilled(self) -> bool:
        """Whether its next worker loads the prompt's blocks, which another one has computed."""
        return self.prefill_usage is not None or (not self.attempts and bool(self.assignment.generation.kv_source))
