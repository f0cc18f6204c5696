"""Adapters in host memory, read in a thread while steps run, and placed on the device between steps."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine_svc.lora.layers import AdapterLayers
from engine_svc.lora.matrices import AdapterMatrices
from engine_svc.plan import AdapterChanges
from quire.errors import InvalidRequest

logger = logging.getLogger(__name__)


class AdapterStore:
    """Holds adapters by their keys, see AdapterChanges. Called from the thread that runs the steps."""

    def __init__(self, layers: AdapterLayers, read: Callable[[Path], AdapterMatrices]) -> None:
        self._layers, self._read = layers, read
        self._held: dict[int, AdapterMatrices] = {}
        self._wanted: set[int] = set()  # adapters being read and not dropped meanwhile
        self._done: queue.SimpleQueue[tuple[int, AdapterMatrices | None, str]] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def begin(self, changes: AdapterChanges) -> None:
        """Applies the changes; reading adapters starts in a thread."""
        for key in changes.dropped:
            self._held.pop(key, None)
            self._wanted.discard(key)
        for placement in changes.placed:
            self._layers.place(placement.slot, self._held[placement.key])
        for key, folder in changes.read.items():
            self._wanted.add(key)
            self._thread.submit(self._read_one, key, Path(folder))

    def _read_one(self, key: int, folder: Path) -> None:
        try:
            self._done.put((key, self._read(folder), ""))
        except InvalidRequest as error:
            self._done.put((key, None, error.message))
        except Exception as error:  # any error concerns this adapter only
            logger.exception("the adapter in %s cannot be read", folder)
            self._done.put((key, None, f"{folder} cannot be read: {type(error).__name__}: {error}"))

    def take_read(self) -> dict[int, str]:
        """The keys of adapters read since the last call, each with the error message, empty if it succeeded."""
        found = {}
        while not self._done.empty():
            key, matrices, why = self._done.get()
            if key in self._wanted:
                self._wanted.discard(key)
                found[key] = why
                if matrices is not None:
                    self._held[key] = matrices
        return found

    def close(self) -> None:
        """Cancels pending reads and stops the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
