"""A cache bounded by the memory of its contents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """An LRU cache with a bound on the bytes that its entries hold."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value stored for the key; None if it was evicted or never stored."""
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Stores a value, unless it is larger than the whole cache; evicts the least recently used entries as needed.

        Args:
            num_bytes: size of key and value together.
        """
        self._drop(key)
        if num_bytes > self._max_bytes:
            return
        self._entries[key] = (value, num_bytes)
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forgets all entries."""
        self._entries.clear()
        self.num_bytes = 0

    def _drop(self, key: K) -> None:
        if entry := self._entries.pop(key, None):
            self.num_bytes -= entry[1]
