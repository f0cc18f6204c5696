"""`/fleet` and `/kv_event_sources`."""

from __future__ import annotations

import msgspec


class WorkerView(msgspec.Struct):
    """State of one worker."""

    address: str
    state: str
    reason: str  # why it is not ready; empty when it is
    data_parallel_rank: int | None  # None without data parallelism
    models: list[str]
    adapters: list[str]
    running_sequences: int
    waiting_requests: int
    kv_usage: float  # share of the KV cache used by live sequences
    prefix_cache_queries: int  # tokens looked up since the worker started
    prefix_cache_hits: int  # tokens found on the device
    external_cache_hits: int  # tokens loaded from host memory or shared storage
    generation_tokens: int
    prefill_tokens_per_second: float  # 0 until known
    seconds_per_step: float


class FleetView(msgspec.Struct):
    """All workers."""

    workers: list[WorkerView]


class KvEventSource(msgspec.Struct):
    """Where a worker publishes its prefix cache events."""

    endpoint: str  # host:port
    publisher: str = "grpc"
    topic: str = "quire.v1.EngineService/SubscribeKvEvents"
    enable_kv_cache_events: bool = True
