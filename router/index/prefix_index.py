"""What the fleet has cached or will have soon, in tiers, and how well it fits a prompt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from router.index.block_index import SLICE, BlockIndex, Holders, match
from router.index.members import Blocks, Members

# A placement's blocks are counted on for so long after its first token: by then the worker has told of them.
_CONFIRM_SECONDS = 2.0
# Where less than this share of the room is taken, more blocks are kept again; seconds between two such changes.
_ROOMY = 0.25
_REFINE_SECONDS = 30.0


class ExpectedBlocks:
    """The blocks that a placed request will leave at its worker."""

    __slots__ = ("keys", "worker")

    def __init__(self, worker: WorkerBlocks, keys: Sequence[int]) -> None:
        self.worker = worker
        self.keys = keys


class WorkerBlocks:
    """What the index knows of one worker."""

    __slots__ = ("bit", "has_left", "num_blocks", "num_host_blocks")

    def __init__(self, bit: int) -> None:
        self.bit = bit  # another's once it has left
        self.has_left = False
        self.num_blocks = 0
        self.num_host_blocks = 0


class PrefixIndex:
    """Two tiers of cached blocks, and those that placed requests are about to compute. Bounded in all three.

    A worker has the same bit in all of them. One that leaves, or begins anew, gives its bit up at once; the blocks are
    cleaned of it later, a slice at a time, before the bit is used again.
    """

    def __init__(self, max_blocks: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.turn = asyncio.Lock()  # of those that take much in
        self._max_blocks = max_blocks
        self._free_bits: list[int] = []
        self._num_bits = 0
        self.joins = 0  # how often a worker has come or begun anew
        self._left = 0
        self._cleaner: Iterator[None] | None = None
        self.device = BlockIndex(max_blocks)
        self._host = BlockIndex(max_blocks)
        self.expected: dict[int, int] = {}  # key → mask, of blocks that placed requests will leave
        self._confirming: deque[tuple[float, ExpectedBlocks]] = deque()
        # Called when all that is known of each worker's blocks is needed anew.
        self.on_refined: list[Callable[[], None]] = []
        self._refined = clock()

    def __len__(self) -> int:
        return len(self.device) + len(self._host)

    def join(self) -> WorkerBlocks:
        """A worker that has nothing cached."""
        self.joins += 1
        if self._free_bits:
            return WorkerBlocks(self._free_bits.pop())
        self._num_bits += 1
        return WorkerBlocks(1 << (self._num_bits - 1))

    def leave(self, worker: WorkerBlocks) -> None:
        """All that is known of it is void, and so is what was expected there."""
        worker.has_left = True
        self._left |= worker.bit

    def store(self, worker: WorkerBlocks, keys: Sequence[int], on_host: bool) -> None:
        """It holds these blocks."""
        if on_host:
            self._host.store(worker.bit, keys)
            worker.num_host_blocks += len(keys)
        else:
            self.device.store(worker.bit, keys)
            worker.num_blocks += len(keys)

    def remove(self, worker: WorkerBlocks, keys: Sequence[int], on_host: bool) -> None:
        """It holds these no longer."""
        if on_host:
            self._host.remove(worker.bit, keys)
            worker.num_host_blocks -= len(keys)
        else:
            self.device.remove(worker.bit, keys)
            worker.num_blocks -= len(keys)

    def clean(self) -> bool:
        """A slice of the housekeeping; returns whether there is more to do."""
        more = self._forget_confirmed()
        self._refine()
        if self._cleaner is None and self._left:
            self._cleaner = self._clean_of(self._left)
        if self._cleaner is not None and next(self._cleaner, self) is self:
            self._cleaner = None
        return more or self._cleaner is not None or self._left > 0

    def expect(self, worker: WorkerBlocks, keys: Sequence[int], known: int) -> ExpectedBlocks:
        """A request was placed there, of whose blocks the worker holds the first `known`, or will by then."""
        has_room = len(self.expected) < self._max_blocks and not worker.has_left
        placed = ExpectedBlocks(worker, keys[known:] if has_room else ())
        expected, bit = self.expected, worker.bit
        for key in placed.keys:
            expected[key] = expected.get(key, 0) | bit
        return placed

    def settle(self, placed: ExpectedBlocks, computed: bool) -> None:
        """Its prompt is computed, so that the worker will tell of the blocks itself; or it never will be."""
        if computed:
            self._confirming.append((self._clock() + _CONFIRM_SECONDS, placed))
        else:
            self._unexpect(placed)

    def cover(self, keys: Sequence[int], workers: Members) -> tuple[Blocks, Blocks | None]:
        """How much of a prompt the workers' caches cover.

        Args:
            keys: of the prompt's full blocks, in order.

        Returns:
            Of each worker: the leading blocks that it has on the device, or will by then; and how many behind those it
            has in host memory, None where nobody has any there.
        """
        holders, sampling = self._device_holders(), self.device.sampling
        device = workers.spread(match(keys, workers.mask, holders, sampling))
        if not len(self._host):
            return device, None
        in_host, sampling = self._host.holders, max(sampling, self._host.sampling)
        both = match(keys, workers.mask, lambda key: holders(key) | in_host(key), sampling)
        return device, workers.spread(both) - device

    def computing(self, keys: Sequence[int], workers: Members, device: Blocks) -> tuple[int, int]:
        """Which of a prompt's blocks are about to be computed somewhere, and are cached nowhere yet.

        Args:
            device: what `cover` found on the workers' devices.

        Returns:
            The first of them, and the one behind the last; both are 0 when there are none.
        """
        if not self.expected:
            return 0, 0
        stop = int(device.max(initial=0))
        known = self.device.holders
        if not stop or known(keys[stop - 1]):
            return 0, 0
        stored = match(keys, workers.mask, known, self.device.sampling, stop)
        return max((blocks for blocks, _ in stored), default=0), stop

    def _clean_of(self, bits: int) -> Iterator[None]:
        yield from self.device.clean(bits)
        yield from self._host.clean(bits)
        held = [key for key, mask in self.expected.items() if mask & bits]
        for start in range(0, len(held), SLICE):
            self._take_out(bits, held[start : start + SLICE])
            yield
        self._left &= ~bits
        self._free_bits += _bits(bits)

    def _refine(self) -> None:
        """Keeps twice the share of all blocks where there is room for it again. Workers must tell of them first."""
        now = self._clock()
        tiers = [tier for tier in (self.device, self._host) if tier.sampling > 1]
        roomy = [tier for tier in tiers if len(tier) < _ROOMY * self._max_blocks]
        if not roomy or now - self._refined < _REFINE_SECONDS:
            return
        self._refined = now
        for tier in roomy:
            tier.refine()
        for ask in list(self.on_refined):
            ask()

    def _device_holders(self) -> Holders:
        if not self.expected:
            return self.device.holders
        expected, device = self.expected.get, self.device.holders
        return lambda key: device(key) | expected(key, 0)

    def _forget_confirmed(self) -> bool:
        """A slice of those that are due; whether there may be more."""
        now, forgotten = self._clock(), 0
        while self._confirming and self._confirming[0][0] <= now:
            if forgotten >= SLICE:
                return True
            placed = self._confirming.popleft()[1]
            self._unexpect(placed)
            forgotten += len(placed.keys)
        return False

    def _unexpect(self, placed: ExpectedBlocks) -> None:
        if not placed.worker.has_left:  # else they are cleaned of it
            self._take_out(placed.worker.bit, placed.keys)

    def _take_out(self, bits: int, keys: Sequence[int]) -> None:
        """Of some workers, these blocks are expected no longer."""
        expected, kept = self.expected, ~bits
        for key in keys:
            rest = expected.get(key, 0) & kept
            if rest:
                expected[key] = rest
            else:
                expected.pop(key, None)


def _bits(mask: int) -> Iterator[int]:
    """Each of them by itself."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
