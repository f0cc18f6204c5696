"""Images encoded by a rank, in a thread beside its steps."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from engine_svc.media.base import EncodedImage, LiveEncoder, MediaEncoder
from engine_svc.media.packing import unpack
from engine_svc.media.unfit import UnfitImage
from engine_svc.plan import ImageChanges
from quire.images import Image

logger = logging.getLogger(__name__)


class ImageStore:
    """Holds encoded images by their keys, see ImageChanges. Called from the thread that runs the steps."""

    def __init__(self, encoder: MediaEncoder, device: torch.device) -> None:
        self._encoder, self._device = encoder, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._held: dict[int, EncodedImage] = {}
        self._leaving: list[int] = []  # images that only the sequences which start in this step may use
        self._wanted: set[int] = set()  # images being encoded and not dropped meanwhile
        # What the encoder goes on with, of recordings that go on. Used in the thread only.
        self._caches: dict[int, dict[str, Any]] = {}
        self._done: queue.SimpleQueue[tuple[int, EncodedImage | None, str]] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")

    def begin(self, changes: ImageChanges) -> None:
        """Applies the changes; encoding begins in the thread."""
        for key in self._leaving:
            self._held.pop(key, None)
        self._leaving = changes.dropped
        self._wanted.difference_update(changes.dropped)
        for key in changes.dropped:
            self._thread.submit(self._caches.pop, key, None)
        for key, image in changes.begun.items():
            self._wanted.add(key)
            encode = partial(self._hear, key) if image.goes_on else self._encoder.encode
            self._thread.submit(self._make, key, partial(encode, image))
        for key, grown in changes.grown.items():
            self._wanted.add(key)
            self._thread.submit(self._make, key, partial(self._hear, grown.key, grown.audio))
        for key, rows in changes.received.items():
            self._wanted.add(key)
            self._thread.submit(self._make, key, partial(unpack, rows, self._device))

    def _make(self, key: int, make: Callable[[], EncodedImage]) -> None:
        if key not in self._wanted:
            return
        try:
            with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                encoded = make()
            if self._stream is not None:
                self._stream.synchronize()
            self._done.put((key, encoded, ""))
        except UnfitImage as error:
            self._done.put((key, None, str(error)))
        except Exception as error:  # whatever an encoder raises about inputs that it was not made for
            logger.exception("an image cannot be encoded")
            self._done.put((key, None, type(error).__name__))

    def _hear(self, recording: int, audio: Image) -> EncodedImage:
        """Encodes what comes next of a recording."""
        if not isinstance(self._encoder, LiveEncoder):
            raise UnfitImage("the model does not write while it hears")
        return self._encoder.hear(audio, self._caches.setdefault(recording, {}))

    def take_encoded(self) -> dict[int, str]:
        """The keys of images encoded since the last call, each with the error message, empty if it succeeded."""
        found = {}
        while not self._done.empty():
            key, encoded, why = self._done.get()
            if key in self._wanted:
                self._wanted.discard(key)
                found[key] = why
                if encoded is not None:
                    self._held[key] = self._of_this_stream(encoded)
        return found

    def _of_this_stream(self, encoded: EncodedImage) -> EncodedImage:
        """The image, whose memory is not reused before the stream of the steps is done with it."""
        if self._stream is not None:
            for part in (encoded.embeddings, encoded.deep):
                if part is not None:
                    part.record_stream(torch.cuda.current_stream(part.device))
        return encoded

    def get(self, key: int) -> EncodedImage:
        """The image that has been encoded under a key."""
        return self._held[key]

    def take(self, key: int) -> EncodedImage:
        """The audio that has been encoded under a key, which is dropped."""
        return self._held.pop(key)

    def close(self) -> None:
        """Cancels what has not begun and stops the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
