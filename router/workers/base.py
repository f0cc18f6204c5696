"""The interface of a worker as the router's core needs it; `remote.py` implements it over gRPC, simulations fake it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from quire.options.kv_transfer import CONSUMER, GRPC, PRODUCER
from quire.runners import ENCODE, GENERATE
from router.index.prefix_index import WorkerBlocks
from router.workers.assignment import Assignment
from router.workers.load import LoadTracker
from router.workers.outlier_ejection import EjectionRecord
from router.workers.state import Condition, State

if TYPE_CHECKING:
    from quire.v1 import common_pb2, engine_pb2


def hash_of(text: str) -> int:
    """A 64-bit hash, the same in every router."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Worker(ABC):
    """An engine worker. The router's core calls it from one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.home = hash_of(address)
        self.load = LoadTracker()
        self.ejection = EjectionRecord()
        # What it serves; the last answer is kept while the worker is away.
        self.model_info: common_pb2.ModelInfo | None = None
        # Name → revision of the adapters that it serves.
        self.adapters: Mapping[str, str] = {}
        # All names it answers to: its model's, the main one first, and its adapters'.
        self.names: Sequence[str] = ()
        # Workers of one make generate the same tokens from the same request; empty if the worker reports no
        # fingerprint.
        self.make = ""
        # The kind of requests that its model is served for; see quire/runners.py.
        self.runner = GENERATE
        # Whether it saves KV blocks for others, and loads none itself.
        self.is_producer = False
        # Whether other workers can pull KV blocks from it, and whether it pulls theirs.
        self.lets_pull = False
        self.pulls = False
        # Totals over the requests that ended there: prompt tokens, and how many of those it found in its cache.
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """The worker's state now, and the reason for it."""

    @property
    @abstractmethod
    def blocks(self) -> WorkerBlocks:
        """The index's handle for its cache. A new object once the cache has started over."""

    @abstractmethod
    def start_generation(
        self, stream_id: int, assignment: Assignment, timeout_ms: int, *, hands_over: bool = False
    ) -> None:
        """Sends a request to the worker, with the time left for it; 0 means no deadline.

        Args:
            hands_over: the worker ends it once the prompt's blocks are saved: see SessionStart.

        Raises:
            Unavailable: there is no connection.
            Overloaded: the worker does not read what it is sent.
        """

    @abstractmethod
    def abort(self, stream_id: int) -> None:
        """Ends a request at the worker; a disconnected worker has ended it already."""

    @abstractmethod
    def stop(self, stream_id: int, choice_index: int, num_output_tokens: int) -> None:
        """Ends one sequence of a request at the worker; a disconnected worker has ended the request already."""

    @abstractmethod
    def hear(self, stream_id: int, append: engine_pb2.AudioAppend) -> None:
        """Goes on with the recording of a request at the worker; a disconnected worker has ended the request already.

        Raises:
            Overloaded: the worker does not read what it is sent.
        """

    @abstractmethod
    async def pool(self, request: common_pb2.PoolRequest, model: str, seconds: float) -> common_pb2.PoolResponse:
        """Has the worker's pooling model process a request's inputs.

        Args:
            model: the model's own name; the caller may have used an alias.
            seconds: time left for the request.

        Raises:
            QuireError: the worker answers with an error, is unreachable, or takes longer.
        """

    @abstractmethod
    def when_dead(self, callback: Callable[[], None]) -> None:
        """Calls back once the process of the last lost session is proven to have died; never if it lives."""

    def learn(self, info: common_pb2.ModelInfo) -> None:
        """Takes in what the worker reports to serve."""
        self.model_info = info
        self.adapters = {adapter.name: adapter.revision for adapter in info.adapters}
        self.names = (*info.served_model_names, *self.adapters)
        self.make = f"{info.fingerprint}, {info.max_model_len} tokens" if info.fingerprint else ""
        self.runner = info.runner or GENERATE
        self.is_producer = info.kv_role == PRODUCER
        self.lets_pull = info.kv_connector == GRPC and info.kv_role != CONSUMER
        self.pulls = info.kv_connector == GRPC and info.kv_role != PRODUCER
        self.load.bound(info.max_num_seqs, info.max_num_batched_tokens)

    def make_for(self, model: str) -> str:
        """The make for requests to this model: workers of one make may still differ in the revision of an adapter."""
        return f"{self.make}, {self.adapters[model]}" if self.make and model in self.adapters else self.make

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.condition.state is State.READY

    @property
    def encodes_only(self) -> bool:
        """Whether it takes no requests, but encodes images for workers that do."""
        return self.runner == ENCODE

    def serves(self, model: str) -> bool:
        """Whether it answers to the name; every worker that has reported its model answers to the empty one."""
        return model in self.names if model else self.model_info is not None
