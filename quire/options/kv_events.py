"""Settings of --kv-events-config: publishing what the prefix cache holds, for routers that read vLLM's events."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=1)]


class KvEventsConfig(msgspec.Struct, frozen=True):
    """Keys of --kv-events-config."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None  # None: zmq if events are enabled
    endpoint: str = "tcp://*:5557"  # each data-parallel rank adds its number to the port
    replay_endpoint: str | None = None  # where subscribers ask for batches that they missed
    buffer_steps: _Count = 10_000  # batches kept for that
    hwm: _Count = 100_000  # messages that wait for a slow subscriber; it misses further ones
    max_queue_size: _Count = 100_000  # without effect: nothing queues in front of the socket
    topic: str = ""

    @property
    def is_on(self) -> bool:
        """Whether events are published."""
        return self.enable_kv_cache_events and self.publisher != "null"
