"""What the fleet has cached in each tier, or will have soon, and how well it covers a prompt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from router.index.block_index import SLICE, BlockIndex, Holders, match
from router.index.members import Blocks, Members

# Seconds for which a placement's blocks are counted on after its first token: by then the worker has reported them.
_CONFIRM_SECONDS = 2.0
# While less than this share of the room is taken, the share of kept blocks is raised again; seconds between two raises.
_ROOMY = 0.25
_REFINE_SECONDS = 30.0


class ExpectedBlocks:
    """The blocks that a placed request will leave in its worker's cache."""

    __slots__ = ("keys", "worker")

    def __init__(self, worker: WorkerBlocks, keys: Sequence[int]) -> None:
        self.worker = worker
        self.keys = keys


class WorkerBlocks:
    """The index's handle for one worker."""

    __slots__ = ("bit", "has_left", "num_blocks", "num_host_blocks")

    def __init__(self, bit: int) -> None:
        self.bit = bit  # reused for another worker once this one has left
        self.has_left = False
        self.num_blocks = 0
        self.num_host_blocks = 0


class PrefixIndex:
    """Two tiers of cached blocks, and the blocks that placed requests are about to compute. All three are bounded.

    A worker has the same bit in all three. One that leaves, or starts over, gives up its bit at once; the blocks are
    cleaned of it later, a slice at a time, before the bit is used again.
    """

    def __init__(self, max_blocks: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.turn = asyncio.Lock()  # held by feeds that add many blocks
        self._max_blocks = max_blocks
        self._free_bits: list[int] = []
        self._num_bits = 0
        self.joins = 0  # number of times that a worker has joined or started over
        self._left = 0
        self._cleaner: Iterator[None] | None = None
        self.device = BlockIndex(max_blocks)
        self._host = BlockIndex(max_blocks)
        self.expected: dict[int, int] = {}  # key → mask, for blocks that placed requests will leave
        self._confirming: deque[tuple[float, ExpectedBlocks]] = deque()
        # Called when every worker's blocks must be reported anew.
        self.on_refined: list[Callable[[], None]] = []
        self._refined = clock()

    def __len__(self) -> int:
        return len(self.device) + len(self._host)

    def join(self) -> WorkerBlocks:
        """Adds a worker with nothing cached."""
        self.joins += 1
        if self._free_bits:
            return WorkerBlocks(self._free_bits.pop())
        self._num_bits += 1
        return WorkerBlocks(1 << (self._num_bits - 1))

    def leave(self, worker: WorkerBlocks) -> None:
        """Removes a worker: everything known of its cache, or expected there, becomes void."""
        worker.has_left = True
        self._left |= worker.bit

    def store(self, worker: WorkerBlocks, keys: Sequence[int], on_host: bool) -> None:
        """Records that the worker holds these blocks."""
        if on_host:
            self._host.store(worker.bit, keys)
            worker.num_host_blocks += len(keys)
        else:
            self.device.store(worker.bit, keys)
            worker.num_blocks += len(keys)

    def remove(self, worker: WorkerBlocks, keys: Sequence[int], on_host: bool) -> None:
        """Records that the worker no longer holds these blocks."""
        if on_host:
            self._host.remove(worker.bit, keys)
            worker.num_host_blocks -= len(keys)
        else:
            self.device.remove(worker.bit, keys)
            worker.num_blocks -= len(keys)

    def clean(self) -> bool:
        """Does a slice of the housekeeping; returns whether there is more to do."""
        more = self._forget_confirmed()
        self._refine()
        if self._cleaner is None and self._left:
            self._cleaner = self._clean_of(self._left)
        if self._cleaner is not None and next(self._cleaner, self) is self:
            self._cleaner = None
        return more or self._cleaner is not None or self._left > 0

    def expect(self, worker: WorkerBlocks, keys: Sequence[int], known: int) -> ExpectedBlocks:
        """Records that a request was placed on a worker that has its first `known` blocks, or will have by then."""
        has_room = len(self.expected) < self._max_blocks and not worker.has_left
        placed = ExpectedBlocks(worker, keys[known:] if has_room else ())
        expected, bit = self.expected, worker.bit
        for key in placed.keys:
            expected[key] = expected.get(key, 0) | bit
        return placed

    def settle(self, placed: ExpectedBlocks, computed: bool) -> None:
        """Ends an expectation: the prompt is computed, so that the worker will report its blocks itself, or it never
        will be."""
        if computed:
            self._confirming.append((self._clock() + _CONFIRM_SECONDS, placed))
        else:
            self._unexpect(placed)

    def cover(self, keys: Sequence[int], workers: Members) -> tuple[Blocks, Blocks | None]:
        """Finds how much of a prompt each worker's cache covers.

        Args:
            keys: keys of the prompt's full blocks, in order.

        Returns:
            For each worker, the number of leading blocks that it has on the device, or will by then; and the number of
            blocks after those that it has in host memory, or None if no worker has any there.
        """
        holders, sampling = self._device_holders(), self.device.sampling
        device = workers.spread(match(keys, workers.mask, holders, sampling))
        if not len(self._host):
            return device, None
        in_host, sampling = self._host.holders, max(sampling, self._host.sampling)
        both = match(keys, workers.mask, lambda key: holders(key) | in_host(key), sampling)
        return device, workers.spread(both) - device

    def computing(self, keys: Sequence[int], workers: Members, device: Blocks) -> tuple[int, int]:
        """Finds the blocks of a prompt that are about to be computed somewhere, and are not cached anywhere yet.

        Args:
            device: what `cover` found on the workers' devices.

        Returns:
            The index of the first such block, and the one past the last; both are 0 when there are none.
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
        """Doubles the share of blocks that is kept, where there is room again, and has the workers report their blocks
        anew."""
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
        """Drops a slice of the expectations that are due; returns whether there may be more."""
        now, forgotten = self._clock(), 0
        while self._confirming and self._confirming[0][0] <= now:
            if forgotten >= SLICE:
                return True
            placed = self._confirming.popleft()[1]
            self._unexpect(placed)
            forgotten += len(placed.keys)
        return False

    def _unexpect(self, placed: ExpectedBlocks) -> None:
        if not placed.worker.has_left:  # otherwise `clean` removes them
            self._take_out(placed.worker.bit, placed.keys)

    def _take_out(self, bits: int, keys: Sequence[int]) -> None:
        """Stops expecting these blocks on the workers with these bits."""
        expected, kept = self.expected, ~bits
        for key in keys:
            rest = expected.get(key, 0) & kept
            if rest:
                expected[key] = rest
            else:
                expected.pop(key, None)


def _bits(mask: int) -> Iterator[int]:
    """Yields each set bit of a mask as a mask of its own."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
