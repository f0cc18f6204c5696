"""The prefix index behaves like the simplest model of one: a set of keys per worker."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.index.block_index import BlockIndex, match
from router.index.members import Members
from router.index.prefix_index import PrefixIndex, WorkerBlocks

CHAINS = [[(chain + 1) * 1000 + place for place in range(40)] for chain in range(4)]


def prefix_length(held: set[int], keys: list[int]) -> int:
    return next((count for count, key in enumerate(keys) if key not in held), len(keys))


def cover(index: PrefixIndex, keys: list[int], *workers: WorkerBlocks) -> tuple[list[float], list[float]]:
    """Number of leading blocks of each worker on the device, and of those after them in host memory."""
    device, host = index.cover(keys, Members.of([worker.bit for worker in workers]))
    return device.tolist(), [0.0] * len(workers) if host is None else host.tolist()


class IndexMachine(RuleBasedStateMachine):
    """Workers join, store blocks, evict the ends of chains, restart and leave."""

    max_blocks = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.index = PrefixIndex(self.max_blocks, lambda: self.now)
        self.workers: list[tuple[WorkerBlocks, set[int], set[int]]] = []

    @rule()
    @precondition(lambda self: len(self.workers) < 8)
    def join(self) -> None:
        self.workers.append((self.index.join(), set(), set()))

    @rule(data=st.data(), chain=st.sampled_from(CHAINS), count=st.integers(1, 40), on_host=st.booleans())
    @precondition(lambda self: self.workers)
    def store(self, data: st.DataObject, chain: list[int], count: int, on_host: bool) -> None:
        blocks, device, host = data.draw(st.sampled_from(self.workers))
        held = host if on_host else device
        new = [key for key in chain[:count] if key not in held]
        self.index.store(blocks, new, on_host)
        held.update(new)

    @rule(data=st.data(), chain=st.sampled_from(CHAINS), count=st.integers(0, 40), on_host=st.booleans())
    @precondition(lambda self: self.workers)
    def remove(self, data: st.DataObject, chain: list[int], count: int, on_host: bool) -> None:
        blocks, device, host = data.draw(st.sampled_from(self.workers))
        held = host if on_host else device
        gone = [key for key in chain[count:] if key in held]
        self.index.remove(blocks, gone, on_host)
        held.difference_update(gone)

    @rule(data=st.data(), again=st.booleans())
    @precondition(lambda self: self.workers)
    def leave(self, data: st.DataObject, again: bool) -> None:
        entry = data.draw(st.sampled_from(self.workers))
        self.workers = [other for other in self.workers if other is not entry]
        self.index.leave(entry[0])
        if again:
            self.workers.append((self.index.join(), set(), set()))

    @rule()
    def clean(self) -> None:
        self.index.clean()

    @invariant()
    def covers_as_the_sets_do(self) -> None:
        for keys in CHAINS:
            on_device, on_host = cover(self.index, keys, *(blocks for blocks, _, _ in self.workers))
            for (blocks, device, host), known, behind in zip(self.workers, on_device, on_host, strict=True):
                self.check((known, behind), prefix_length(device, keys), prefix_length(device | host, keys))
                assert (blocks.num_blocks, blocks.num_host_blocks) == (len(device), len(host))

    def check(self, found: tuple[float, float], on_device: int, anywhere: int) -> None:
        assert found == (on_device, anywhere - on_device)

    def teardown(self) -> None:
        """Once all workers have left and cleaning is done, the index is empty."""
        while self.workers:
            self.index.leave(self.workers.pop()[0])
        while self.index.clean():
            pass
        assert len(self.index) == 0


class SmallIndexMachine(IndexMachine):
    """The capacity is smaller than what workers hold, and at times sufficient again."""

    max_blocks = 40

    def __init__(self) -> None:
        super().__init__()
        self.index.on_refined.append(self.tell_anew)

    def tell_anew(self) -> None:
        """Stores all blocks anew, as feeds do by requesting snapshots."""
        told = []
        for blocks, device, host in self.workers:
            self.index.leave(blocks)
            told.append((self.index.join(), device, host))
            self.index.store(told[-1][0], sorted(device), on_host=False)
            self.index.store(told[-1][0], sorted(host), on_host=True)
        self.workers = told

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    def check(self, found: tuple[float, float], on_device: int, anywhere: int) -> None:
        assert found[0] <= on_device
        assert sum(found) <= anywhere
        assert len(self.index) <= 2 * self.max_blocks


TestIndexMachine = IndexMachine.TestCase
TestSmallIndexMachine = SmallIndexMachine.TestCase
TestIndexMachine.settings = TestSmallIndexMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


def test_what_a_thousand_workers_hold_is_told_of_each() -> None:
    """A thousand bits, with workers in random order: some alone, some with equal depth, some not asked for."""
    index = PrefixIndex(1_000_000, lambda: 0.0)
    workers = [index.join() for _ in range(1000)]
    depths = [0 if number % 3 == 0 else number % 7 * 5 if number % 50 else number // 50 for number in range(1000)]
    for worker, depth in zip(workers, depths, strict=True):
        index.store(worker, CHAINS[0][:depth], on_host=False)
    asked = random.Random(0).sample(range(1000), 900)
    found, _ = cover(index, CHAINS[0], *(workers[number] for number in asked))
    assert found == [depths[number] for number in asked]


def test_a_search_reads_few_blocks() -> None:
    """With 64 workers that drop out one after another, a search reads fewer than 600 of 4,096 blocks."""
    index = BlockIndex(1_000_000)
    keys = random.Random(0).sample(range(10**9), 4096)
    for worker in range(64):
        index.store(1 << worker, keys[: 64 * worker + 1])
    reads: list[int] = []

    def get(key: int) -> int:
        reads.append(key)
        return index.holders(key)

    found = match(keys, (1 << 64) - 1, get)
    assert found == [(64 * worker + 1, 1 << worker) for worker in range(64)]
    assert len(reads) < 600


@pytest.mark.parametrize("cap", [1024, 4096])
def test_memory_is_bounded_and_matches_are_known_to_within_the_sampling(cap: int) -> None:
    source = random.Random(1)
    index = PrefixIndex(cap, lambda: 0.0)
    worker = index.join()
    chains = [[source.getrandbits(64) for _ in range(256)] for _ in range(100)]
    for chain in chains:
        index.store(worker, chain, on_host=False)
    sampling = index.device.sampling
    assert len(index) <= cap
    assert sampling == (32 if cap == 1024 else 8)
    errors = []
    for chain in chains:
        ((found,), _) = cover(index, chain, worker)
        assert found <= 256
        errors.append(256 - found)
    assert sum(errors) / len(errors) < 1.5 * sampling
    for chain in chains:
        index.remove(worker, chain, on_host=False)
    assert len(index) == 0


def test_room_is_made_and_a_worker_cleaned_of_a_little_at_a_time() -> None:
    """No single step goes through all blocks, however many there are."""
    source = random.Random(2)
    index = PrefixIndex(100_000, lambda: 0.0)
    worker, other = index.join(), index.join()
    keys = [source.getrandbits(64) for _ in range(100_000)]
    index.store(worker, keys, on_host=False)
    index.store(other, keys[:500], on_host=False)
    index.store(worker, [source.getrandbits(64) for _ in range(10)], on_host=False)
    assert 85_000 < len(index) <= 100_000
    index.leave(worker)
    sizes = [len(index)]
    while index.clean():
        sizes.append(len(index))
    assert max(before - after for before, after in pairwise(sizes)) <= 2048
    assert 0 < len(index) <= 500


def test_what_was_expected_of_long_prompts_is_forgotten_a_little_at_a_time() -> None:
    now = 0.0
    index = PrefixIndex(1_000_000, lambda: now)
    worker = index.join()
    for prompt in range(20):
        keys = range(1000 * prompt, 1000 * prompt + 1000)
        index.settle(index.expect(worker, keys, 0), computed=True)
    now = 10.0
    sizes = [len(index.expected)]
    while index.clean():
        sizes.append(len(index.expected))
    assert sizes == [20_000, 17_000, 14_000, 11_000, 8000, 5000, 2000]
    assert not index.expected


def test_placed_requests_are_counted_on_until_the_worker_has_told() -> None:
    now = 100.0
    index = PrefixIndex(1000, lambda: now)
    worker, other = index.join(), index.join()
    placed = index.expect(worker, CHAINS[0], 0)
    sibling = index.expect(worker, CHAINS[0], 40)
    assert cover(index, CHAINS[0], other, worker) == ([0, 40], [0, 0])
    index.settle(sibling, computed=False)
    assert cover(index, CHAINS[0], worker) == ([40], [0])
    index.settle(placed, computed=True)
    index.clean()
    assert cover(index, CHAINS[0], worker)[0] == [40]
    now += 10
    index.clean()
    assert cover(index, CHAINS[0], worker)[0] == [0]
    assert not index.expected


def test_blocks_count_as_being_computed_until_somebody_has_them() -> None:
    index = PrefixIndex(1000, lambda: 0.0)
    first, second = index.join(), index.join()
    keys = CHAINS[0]

    def computing() -> tuple[int, int]:
        members = Members.of([first.bit, second.bit])
        return index.computing(keys, members, index.cover(keys, members)[0])

    assert computing() == (0, 0)
    index.expect(first, keys, 0)
    assert computing() == (0, 40)
    index.store(second, keys[:10], on_host=False)
    assert computing() == (10, 40)
    index.store(first, keys, on_host=False)
    assert computing() == (0, 0)


def test_an_aborted_placement_is_not_counted_on() -> None:
    index = PrefixIndex(1000, lambda: 0.0)
    worker = index.join()
    index.settle(index.expect(worker, CHAINS[0], 0), computed=False)
    assert cover(index, CHAINS[0], worker)[0] == [0]
    assert not index.expected


@pytest.mark.parametrize("computed", [False, True])
def test_what_was_expected_of_a_worker_that_has_left_is_not_counted_on_at_the_next_one(computed: bool) -> None:
    """The next worker may reuse the bit of the one that left, and have requests with the same prompt."""
    now = 100.0
    index = PrefixIndex(1000, lambda: now)
    worker = index.join()
    placed = index.expect(worker, CHAINS[0], 0)
    index.leave(worker)
    while index.clean():
        pass
    following = index.join()
    assert following.bit == worker.bit
    assert cover(index, CHAINS[0], following)[0] == [0]
    index.expect(following, CHAINS[0][:20], 0)
    index.settle(placed, computed)
    now += 10
    index.clean()
    assert cover(index, CHAINS[0], following)[0] == [20]
