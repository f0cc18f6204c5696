"""Requests and responses of the admin port."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.protocol.fleet import WorkerView

INITIAL_WEIGHTS: Final = "default"  # SGLang's name for the weights that a worker was started with


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
    weight_version: str = ""
    error: str = ""


class AdminWorkers(msgspec.Struct):
    """All workers, as `/fleet` shows them, and their administrative state."""

    workers: list[WorkerView]
    administration: list[AdminWorker]


class UpdateWeights(msgspec.Struct):
    """The body of /update_weights_from_disk, as SGLang defines it."""

    model_path: str
    weight_version: str | None = None
    abort_all_requests: bool = False
    load_format: str | None = None
    flush_cache: bool = True
    keep_pause: bool = False


class CollectiveRpc(msgspec.Struct):
    """The body of /collective_rpc."""

    method: str
    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class ScaleElastic(msgspec.Struct):
    """The body of /scale_elastic_ep."""

    new_data_parallel_size: int
    drain_timeout: float = 120.0  # seconds
