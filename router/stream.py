"""One request from its start to its last delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.v1 import common_pb2
from router.admission import Entry
from router.clock import Timer
from router.index.prefix_index import Placed
from router.journal import Journal
from router.policies.base import RouteRequest
from router.worker_port import WorkerPort

if TYPE_CHECKING:
    from router.sessions import CallerSession


@dataclass(eq=False, slots=True)
class Stream:
    """Owned by its session and by the dispatcher's tables. It is on a worker, or waits for one."""

    session: CallerSession
    # The caller's number for it.
    stream_id: int
    request: RouteRequest
    # What the caller sent, and a seed; carries the progress made when it goes to another worker.
    generation: common_pb2.Generation
    journal: Journal
    # Clock time at which it came, and at which it is out of time; None without a deadline.
    arrived: float
    deadline: float | None
    # Keys of the prompt's full blocks, once they were needed.
    keys: Sequence[int] | None = None
    # Where it runs.
    worker: WorkerPort | None = None
    # Our number for it on the worker's session. Another attempt gets another number, so that nothing of the first
    # attempt is taken for the second's.
    worker_stream_id: int = 0
    # Tokens that the worker gets with it, and how many of them it has to compute; none once its first delta has come.
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    # What the index expects of it there, and how many prompt tokens the worker was believed to hold.
    placed: Placed | None = None
    predicted_tokens: int | None = None
    # Attempts so far, and those in a row that brought no token; the worker of the last one, and its make.
    attempts: int = 0
    fruitless: int = 0
    avoid: WorkerPort | None = None
    make: str = ""
    # Its first delta from the worker it is on has come.
    started: bool = False
    # It counts against the retry budget.
    retrying: bool = False
    # While it waits for a worker.
    entry: Entry[Stream] | None = None
    wait_timer: Timer | None = None
    timer: Timer | None = None
