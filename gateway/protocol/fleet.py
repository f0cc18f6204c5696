"""`/fleet` and `/kv_event_sources`."""

from __future__ import annotations

import msgspec


class WorkerView(msgspec.Struct):
    """One worker."""

    address: str
    state: str
    reason: str  # why it is not ready; empty when it is
    data_parallel_rank: int | None  # none without data parallelism
    models: list[str]
    adapters: list[str]
    running_sequences: int
    waiting_requests: int
    kv_usage: float  # share of the cache that live sequences hold
    prefix_cache_queries: int  # tokens looked up since its start
    prefix_cache_hits: int
    generation_tokens: int
    prefill_tokens_per_second: float  # 0 until known
    seconds_per_step: float


class FleetView(msgspec.Struct):
    """All of them."""

    workers: list[WorkerView]


class KvEventSource(msgspec.Struct):
    """Where a worker tells of its prefix cache."""

    endpoint: str  # host:port
    publisher: str = "grpc"
    topic: str = "quire.v1.EngineService/SubscribeKvEvents"
    enable_kv_cache_events: bool = True
