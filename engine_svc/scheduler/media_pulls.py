"""Images that other workers encode, on their way to this one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from engine_svc.plan import EncodedRows
from quire.images import Image

logger = logging.getLogger(__name__)

# Asks the worker that an image names for its embeddings. The future is done within a bounded time, with None if they do
# not come. Canceling it ends the call.
PullMedia = Callable[[Image], Future[EncodedRows | None]]


class MediaPuller(Protocol):
    """Has images encoded by other workers."""

    def pull(self, image: Image, fingerprint: str) -> Future[EncodedRows | None]:
        """See PullMedia. May be called in any thread.

        Args:
            fingerprint: of the encoder that this worker has.
        """


class MediaPulls:
    """The images that other workers have been asked for. What does not come is encoded by this one."""

    def __init__(self, pull: PullMedia | None) -> None:
        """
        Args:
            pull: None if this worker encodes everything itself.
        """
        self._pull = pull
        self._awaited: dict[int, tuple[Image, Future[EncodedRows | None]]] = {}
        self.num_failed = 0

    def begin(self, key: int, image: Image) -> bool:
        """Asks for an image; returns False if nobody else encodes it."""
        if self._pull is None or not image.encoder or image.goes_on:
            return False
        self._awaited[key] = image, self._pull(image)
        return True

    def cancel(self, key: int) -> bool:
        """Forgets an image; returns whether it was awaited."""
        if (awaited := self._awaited.pop(key, None)) is None:
            return False
        awaited[1].cancel()
        return True

    def take(self) -> tuple[Mapping[int, EncodedRows], Mapping[int, Image]]:
        """What has come since the last call, and what will not come; each by its key."""
        received, missing = {}, {}
        for key in [key for key, (_, pull) in self._awaited.items() if pull.done()]:
            image, pull = self._awaited.pop(key)
            if (rows := _result(pull)) is None:
                missing[key] = image
            else:
                received[key] = rows
        self.num_failed += len(missing)
        return received, missing


def _result(pull: Future[EncodedRows | None]) -> EncodedRows | None:
    """What a pull that is done has brought; a fault of it must not end the engine."""
    if pull.cancelled():  # the event loop is closing
        return None
    if (error := pull.exception()) is not None:
        logger.error("an image cannot be pulled", exc_info=error)
        return None
    return pull.result()
