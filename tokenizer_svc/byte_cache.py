"""A cache that is bounded by the memory of what it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Forgets what was not asked for the longest."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """What was put there; None where it is forgotten or never was."""
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """
        Args:
            num_bytes: of key and value together.
        """
        self._drop(key)
        if num_bytes > self._max_bytes:
            return
        self._entries[key] = (value, num_bytes)
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: K) -> None:
        if entry := self._entries.pop(key, None):
            self.num_bytes -= entry[1]
