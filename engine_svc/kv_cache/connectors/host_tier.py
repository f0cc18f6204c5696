"""A second tier of the prefix cache, in host memory: what the device's blocks had to forget.

A block whose contents are about to be overwritten is copied out first, and copied in again when a prompt wants it. That
serves preempted sequences (their blocks are cached) as well as prefixes that come back late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from engine_svc.kv_cache.events import TierRecorder


class HostTier:
    """Host blocks by hash, least recently used first, and the copies that the next step begins with.

    All copies out of the device run before all copies in, and both before anything is computed. The recorder is told
    what comes and goes.
    """

    def __init__(self, num_blocks: int, recorder: TierRecorder) -> None:
        self.num_blocks = num_blocks
        self._recorder = recorder
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(num_blocks - 1, -1, -1))
        self._pinned: set[bytes] = set()
        self._arriving: set[int] = set()  # device blocks of the copies in
        self._copies_out: dict[int, int] = {}  # host block → device block; a later copy replaces an earlier one
        self._copies_in: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, hashes: Iterable[bytes]) -> list[bytes]:
        """The longest prefix of `hashes` that is here."""
        found = []
        for block_hash in hashes:
            if block_hash not in self._blocks:
                break
            found.append(block_hash)
        return found

    def keep(self, block_hash: bytes, device_block: int) -> None:
        """Copies a device block here, unless it is here already or there is no room."""
        if block_hash in self._blocks:
            self._blocks.move_to_end(block_hash)
            return
        # One that is only about to be filled itself has nothing to copy yet.
        if device_block in self._arriving:
            return
        host_block = self._take()
        if host_block is not None:
            self._blocks[block_hash] = host_block
            self._copies_out[host_block] = device_block
            self._recorder.stored(block_hash)

    def pin(self, hashes: Iterable[bytes]) -> None:
        """These stay until the next step has begun."""
        self._pinned.update(hashes)

    def restore(self, block_hash: bytes, device_block: int) -> None:
        """Copies a pinned block to the device; it stays here too."""
        self._blocks.move_to_end(block_hash)
        self._copies_in.append((self._blocks[block_hash], device_block))
        self._arriving.add(device_block)

    def take_copies(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(device block, host block) pairs to copy out, and (host block, device block) pairs to copy in."""
        copies = [(device, host) for host, device in self._copies_out.items()], self._copies_in
        self._copies_out, self._copies_in = {}, []
        self._pinned.clear()
        self._arriving.clear()
        return copies

    def clear(self) -> None:
        """Forgets everything; the recorder hears of it from whoever clears all tiers."""
        self._free.extend(self._blocks.values())
        self._blocks.clear()
        self.take_copies()

    def hashes(self) -> list[bytes]:
        """Of all blocks, in no order: following an OrderedDict's own takes forty times as long."""
        return list(dict.keys(self._blocks))

    def check(self) -> None:
        """Proves that no block is lost.

        Raises:
            RuntimeError: one is.
        """
        if sorted((*self._free, *self._blocks.values())) != list(range(self.num_blocks)):
            raise RuntimeError("blocks of the host tier are lost or used twice")

    def _take(self) -> int | None:
        if self._free:
            return self._free.pop()
        oldest = next((block_hash for block_hash in self._blocks if block_hash not in self._pinned), None)
        if oldest is None:
            return None
        self._recorder.removed(oldest)
        return self._blocks.pop(oldest)
