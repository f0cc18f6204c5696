"""The interface of a worker, as the router's core needs it: behind gRPC in `remote.py`, made up in simulations."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from quire.runners import GENERATE
from router.index.prefix_index import WorkerBlocks
from router.workers.assignment import Assignment
from router.workers.load import LoadTracker
from router.workers.outlier_ejection import EjectionRecord
from router.workers.state import Condition, State

if TYPE_CHECKING:
    from quire.v1 import common_pb2


def hash_of(text: str) -> int:
    """64 bits, the same in every router."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Worker(ABC):
    """One worker. The router's core calls it from one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.home = hash_of(address)
        self.load = LoadTracker()
        self.ejection = EjectionRecord()
        # What it serves; the last answer stays while the worker is away.
        self.model_info: common_pb2.ModelInfo | None = None
        # Revisions of the adapters that it serves, by their names.
        self.adapters: Mapping[str, str] = {}
        # All that it answers to: its model's names, the main one first, and its adapters'.
        self.names: Sequence[str] = ()
        # Workers of one make generate the same tokens from the same request; empty for those that do not tell.
        self.make = ""
        # What its model is served for; see quire/runners.py.
        self.runner = GENERATE
        # Of the requests that ended there: prompt tokens, and those that it found in its cache.
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """The worker's state now, and the reason for it."""

    @property
    @abstractmethod
    def blocks(self) -> WorkerBlocks:
        """What the index knows of its cache. Another object once it has begun anew."""

    @abstractmethod
    def start_generation(self, stream_id: int, assignment: Assignment, timeout_ms: int) -> None:
        """Sends a request to the worker, with the time that is left for it; 0 where it has no deadline.

        Raises:
            Unavailable: there is no connection.
            Overloaded: the worker does not read what it is sent.
        """

    @abstractmethod
    def abort(self, stream_id: int) -> None:
        """Ends a request at the worker; one that is not connected has ended it already."""

    @abstractmethod
    def stop(self, stream_id: int, choice_index: int, num_output_tokens: int) -> None:
        """Ends one sequence of a request at the worker; one that is not connected has ended the request already."""

    @abstractmethod
    async def pool(self, request: common_pb2.PoolRequest, model: str, seconds: float) -> common_pb2.PoolResponse:
        """What the worker's pooling model makes of a request's inputs.

        Args:
            model: its own name, where the caller may have used an alias.
            seconds: that are left for it.

        Raises:
            QuireError: it answers with an error, is out of reach, or takes longer.
        """

    @abstractmethod
    def when_dead(self, callback: Callable[[], None]) -> None:
        """Calls back once it is proven that the process of the session lost last has died; never if it lives."""

    def learn(self, info: common_pb2.ModelInfo) -> None:
        """The worker has told what it serves."""
        self.model_info = info
        self.adapters = {adapter.name: adapter.revision for adapter in info.adapters}
        self.names = (*info.served_model_names, *self.adapters)
        self.make = f"{info.fingerprint}, {info.max_model_len} tokens" if info.fingerprint else ""
        self.runner = info.runner or GENERATE
        self.load.bound(info.max_num_seqs, info.max_num_batched_tokens)

    def make_for(self, model: str) -> str:
        """The same where the request names an adapter, which may differ where they do not."""
        return f"{self.make}, {self.adapters[model]}" if self.make and model in self.adapters else self.make

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.condition.state is State.READY

    def serves(self, model: str) -> bool:
        """Whether it answers to the name; every worker that has told its model does to the empty one."""
        return model in self.names if model else self.model_info is not None
