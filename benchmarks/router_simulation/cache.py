"""The KV blocks of one simulated engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """Blocks held by running sequences, blocks cached for later, least recently used gone first.

    A sequence gives its blocks back from its last one on, so that among equally old ones the leaves go first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._users: dict[int, int] = {}  # key → sequences that hold the cached block now
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks that nobody holds, the oldest first
        self._private = 0  # blocks held that are not cached
        # What changed since these were last emptied.
        self.stored: list[int] = []
        self.removed: list[int] = []

    @property
    def used_blocks(self) -> int:
        """Held by sequences."""
        return self._private + len(self._users) - len(self._idle)

    @property
    def keys(self) -> Sequence[int]:
        """Of all cached blocks."""
        return list(self._users)

    def allocate(self, keys: Sequence[int], most_hits: int, total: int) -> int | None:
        """Takes all blocks that a sequence will ever need.

        Args:
            keys: of its full blocks; the first `most_hits` may be taken from the cache.

        Returns:
            How many were cached; None, and nothing is taken, when there are too few blocks.
        """
        hits = 0
        users, idle = self._users, self._idle
        while hits < most_hits and keys[hits] in users:
            hits += 1
        idle_hits = sum(key in idle for key in keys[:hits])
        if self.used_blocks + idle_hits + total - hits > self.num_blocks:
            return None
        for key in keys[:hits]:
            users[key] += 1
            idle.pop(key, 0)
        self._private += total - hits
        while self._private + len(users) > self.num_blocks:
            evicted, _ = idle.popitem(last=False)
            del users[evicted]
            self.removed.append(evicted)
        return hits

    def publish(self, keys: Sequence[int]) -> list[int]:
        """A sequence's blocks are computed and can be found from now on.

        Returns:
            The keys that it holds by that; the others were cached already, as another block.
        """
        new = [key for key in keys if key not in self._users]
        for key in new:
            self._users[key] = 1
        self._private -= len(new)
        self.stored += new
        return new

    def free(self, held: Sequence[int], total: int) -> None:
        """A sequence gives its blocks back.

        Args:
            held: keys of those that are cached, in order.
            total: all that it has.
        """
        self._private -= total - len(held)
        users, idle = self._users, self._idle
        for key in reversed(held):
            users[key] -= 1
            if not users[key]:
                idle[key] = None
