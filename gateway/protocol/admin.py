"""What the admin port's routes take and answer."""

from __future__ import annotations

import msgspec

from gateway.protocol.fleet import WorkerView


class AdminWorker(msgspec.Struct, frozen=True):
    """A worker after a command; where it could not be carried out, why."""

    worker: str  # host:port
    is_draining: bool = False
    is_paused: bool = False
    sleep_level: int | None = None  # none while it is awake
    asleep: tuple[str, ...] = ()  # parts of its memory that were given back
    is_profiling: bool = False
    aborted_requests: int = 0
    files: tuple[str, ...] = ()  # that were written, on its machine
    error: str = ""


class AdminWorkers(msgspec.Struct):
    """All workers: as clients may see them, and what operators have made of them."""

    workers: list[WorkerView]
    administration: list[AdminWorker]


class ScaleElastic(msgspec.Struct):
    """The body of /scale_elastic_ep."""

    new_data_parallel_size: int
    drain_timeout: float = 120.0  # seconds
