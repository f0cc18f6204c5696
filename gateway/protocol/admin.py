"""Requests and responses of the admin port."""

from __future__ import annotations

import msgspec

from gateway.protocol.fleet import WorkerView


class AdminWorker(msgspec.Struct, frozen=True):
    """State of a worker after a command; if the command failed, the error."""

    worker: str  # host:port
    is_draining: bool = False
    is_paused: bool = False
    sleep_level: int | None = None  # None while awake
    asleep: tuple[str, ...] = ()  # parts of its memory that are released
    is_profiling: bool = False
    aborted_requests: int = 0
    files: tuple[str, ...] = ()  # files that were written on its machine
    error: str = ""


class AdminWorkers(msgspec.Struct):
    """All workers, as `/fleet` shows them, and their administrative state."""

    workers: list[WorkerView]
    administration: list[AdminWorker]


class ScaleElastic(msgspec.Struct):
    """The body of /scale_elastic_ep."""

    new_data_parallel_size: int
    drain_timeout: float = 120.0  # seconds
