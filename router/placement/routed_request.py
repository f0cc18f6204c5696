"""A request as placement sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.index.prefix_index import ExpectedBlocks
from router.placement.policies.base import RouteRequest
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.ready_set import Naming


@dataclass(eq=False, slots=True)
class RoutedRequest:
    """What is to run, where it does, and what is expected of it there."""

    request: RouteRequest
    assignment: Assignment
    # Clock time at which it came, and at which it is out of time; None without a deadline.
    arrived: float
    deadline: float | None
    # Keys of the full blocks of all that is known of it, as some workers name them, once they were needed.
    keys: dict[Naming, Sequence[int]] = field(default_factory=dict)
    # Where it runs.
    worker: Worker | None = None
    # Our number for it on the worker's session. Another attempt gets another number, so that nothing of the first
    # attempt is taken for the second's.
    worker_stream_id: int = 0
    # Tokens that the worker gets with it, and how many of them it has to compute; none once its first delta has come.
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    # What the index expects of it there, and how many prompt tokens the worker was believed to hold.
    expected: ExpectedBlocks | None = None
    predicted_tokens: int | None = None
    # Attempts so far, and those in a row that brought no token; the worker of the last one, and its make.
    attempts: int = 0
    fruitless: int = 0
    avoid: Worker | None = None
    avoid_until: float = 0.0
    make: str = ""
    # Its first delta from the worker it is on has come.
    started: bool = False
