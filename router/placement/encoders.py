"""Chooses the workers that encode the images, videos and audios of requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from quire.options.ec_transfer import CONSUMER
from quire.rpc.images import goes_on
from router.workers.base import Worker

if TYPE_CHECKING:
    from quire.v1 import common_pb2

# An encoder gets no image while so many more wait there than at the one with the fewest.
_MOST_WAITING_MORE = 2


class Encoders:
    """The ready workers that encode for others. Lookups are cached until `changed`."""

    def __init__(self, workers: Callable[[], Collection[Worker]]) -> None:
        """
        Args:
            workers: returns all workers known now.
        """
        self._workers = workers
        self._ready: Sequence[Worker] | None = None

    def changed(self) -> None:
        """To be called when a worker came, went, or changed its state."""
        self._ready = None

    def choose(self, generation: common_pb2.Generation, worker: Worker) -> Sequence[str]:
        """For each image of a request the address of the worker that encodes it for the one that generates; nothing if
        that one encodes its own.

        The same image goes to the same encoder, which keeps what it has encoded, unless others have far less to do.
        """
        info = worker.model_info
        if not generation.images or info is None or info.ec_role != CONSUMER or goes_on(generation):
            return ()
        fitting = [each for each in self._look() if _fingerprint(each) == info.encoder_fingerprint]
        if not fitting:
            return ()
        added: dict[str, int] = {}
        chosen = []
        for image in generation.images:
            waiting = {each.address: _waiting(each) + added.get(each.address, 0) for each in fitting}
            most = min(waiting.values()) + _MOST_WAITING_MORE
            free = [each for each in fitting if waiting[each.address] <= most]
            best = max(free, key=lambda each: _weight(image.routing_key, each.home)).address
            added[best] = added.get(best, 0) + 1
            chosen.append(best)
        return chosen

    def _look(self) -> Sequence[Worker]:
        if self._ready is None:
            self._ready = [worker for worker in self._workers() if worker.encodes_only and worker.ready]
        return self._ready


def _fingerprint(worker: Worker) -> str:
    return worker.model_info.encoder_fingerprint if worker.model_info else ""


def _waiting(worker: Worker) -> int:
    """Images that wait or are being encoded there, as of its last heartbeat."""
    return worker.load.last.waiting_requests + worker.load.last.running_sequences if worker.load.last else 0


def _weight(routing_key: int, home: int) -> bytes:
    """Rendezvous hashing: when an encoder comes or goes, the images of the others stay where they are."""
    return hashlib.blake2b(routing_key.to_bytes(8, "big") + home.to_bytes(8, "big"), digest_size=8).digest()
