"""Requests and responses of the admin port."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

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
    num_ranks: int = 0


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


_PACKED_BYTES: Final = 1 << 30
_MOST_BYTES: Final = 1 << 62


class TrainerGroup(msgspec.Struct):
    """A trainer's process group, as vLLM's init_info describes it."""

    master_address: str
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    rank_offset: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    world_size: Annotated[int, msgspec.Meta(ge=2, le=1 << 20)]
    packed: bool = False
    packed_buffer_size_bytes: Annotated[int, msgspec.Meta(ge=1, le=_MOST_BYTES)] = _PACKED_BYTES
    packed_num_buffers: int = 2  # has no effect: a buffer is freed before the next one is received


class InitWeightTransfer(msgspec.Struct):
    """The body of /init_weight_transfer_engine."""

    init_info: TrainerGroup


class StartWeightUpdate(msgspec.Struct):
    """The body of /start_weight_update."""

    is_checkpoint_format: bool = True


class SentWeights(msgspec.Struct):
    """The tensors that a trainer sends next, as vLLM's update_info describes them."""

    names: Annotated[list[str], msgspec.Meta(min_length=1)]
    dtype_names: list[str]
    shapes: list[list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]]]
    packed: bool | None = None  # None means as in init_info
    packed_buffer_size_bytes: Annotated[int, msgspec.Meta(ge=1, le=_MOST_BYTES)] = _PACKED_BYTES
    packed_num_buffers: int = 2  # has no effect


class ReceiveWeights(msgspec.Struct):
    """The body of /update_weights."""

    update_info: SentWeights


class FinishWeightUpdate(msgspec.Struct):
    """The body of /finish_weight_update."""

    weight_version: str | None = None
    baseline: dict[str, str] | None = None


class CheckWeights(msgspec.Struct):
    """The body of /weight_checker."""

    action: Literal["checksum", "compare", "reset"]
    baseline: dict[str, str] | None = None  # SHA-256 of each tensor, in hexadecimal digits


class NameWeights(msgspec.Struct):
    """The body of /update_weight_version."""

    new_version: str


class CollectiveRpc(msgspec.Struct):
    """The body of /collective_rpc."""

    method: str
    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class ScaleElastic(msgspec.Struct):
    """The body of /scale_elastic_ep."""

    new_data_parallel_size: int
    drain_timeout: float = 120.0  # seconds
