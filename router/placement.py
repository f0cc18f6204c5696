"""Which request runs on which worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from quire.errors import Unavailable
from router.policies.base import Policy
from router.sessions import Stream
from router.worker import Worker

Eligible = Callable[[str], Sequence[Worker]]


class PlacementTable:
    """The requests that are on a worker now, by the number they have there."""

    def __init__(self, eligible: Eligible, policy: Policy) -> None:
        """
        Args:
            eligible: the ready workers for a model's name; raises the error to answer with when there is none.
        """
        self._eligible = eligible
        self._policy = policy
        self._ids = itertools.count(1)  # no two workers share a number
        self._streams: dict[int, Stream] = {}
        # `self.find(worker_stream_id)`: the request, or None. A bound method of the table, for the hot path.
        self.find = self._streams.get

    def __len__(self) -> int:
        return len(self._streams)

    def on_worker(self, worker: Worker) -> list[Stream]:
        """The requests that run there."""
        return [stream for stream in self._streams.values() if stream.worker is worker]

    def add(self, stream: Stream, avoid: Worker | None = None) -> None:
        """Sends the request to the worker that the policy picks, any but `avoid`.

        Raises:
            QuireError: there is no worker for it; nothing has changed.
        """
        assert stream.generation is not None  # only dropped with the first delta, after which nothing is placed
        workers = {worker.address: worker for worker in self._eligible(stream.request.model) if worker is not avoid}
        if not workers:
            raise Unavailable("No other engine worker is ready.")
        chosen = self._policy.choose(stream.request, [worker.view() for worker in workers.values()])
        worker = workers[chosen.address]
        stream_id = next(self._ids)
        worker.start_generation(stream_id, stream.generation, _timeout_ms(stream))
        worker.load.placed(stream.request)
        stream.worker, stream.worker_stream_id = worker, stream_id
        self._streams[stream_id] = stream

    def mark_started(self, stream: Stream) -> None:
        """The request's first delta is here."""
        if stream.generation is not None and stream.worker is not None:
            stream.worker.load.prefilled(stream.request)
        stream.generation = None

    def remove(self, stream: Stream) -> None:
        """Takes the request off its worker, if it is on one. Sends nothing."""
        worker, stream.worker = stream.worker, None
        if worker is None:
            return
        del self._streams[stream.worker_stream_id]
        if stream.generation is not None:
            worker.load.prefilled(stream.request)
        worker.load.ended(stream.request)


def _timeout_ms(stream: Stream) -> int:
    """What is left of the request's time, in milliseconds; 0 when it has no deadline."""
    if stream.deadline is None:
        return 0
    return max(1, round((stream.deadline - asyncio.get_running_loop().time()) * 1000))
