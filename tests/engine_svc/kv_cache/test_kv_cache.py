"""The KV cache's bookkeeping, by examples and against a model in a Hypothesis state machine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from functools import reduce
from operator import xor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_svc.kv_cache.block_pool import BlockPool
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.host_tier import HostTier
from engine_svc.kv_cache.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    Changes,
    Digest,
    EventLog,
    KvEvent,
    Tier,
    TierRecorder,
)
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.kv_cache.prefix import Hits
from engine_svc.layer_groups import group_layers, most_caches
from quire.block_hash import block_key, block_keys
from quire.options.cache import CacheOptions
from tests.support.kv_cache import make_manager, take_copies

BLOCK = 4


def computed(manager: KvCacheManager, tokens: list[int], salt: str = "") -> BlockTable:
    """Returns a table whose tokens are all computed."""
    table = BlockTable(salt)
    found = manager.lookup(table, tokens)
    assert manager.allocate(table, len(tokens), found) is not None
    manager.make_findable(table, tokens, len(tokens))
    return table


def test_pool_takes_in_order_of_release() -> None:
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    pool.release(blocks[1], keep=True)
    pool.release(blocks[0], keep=True)
    pool.release(blocks[2], keep=False)
    assert [pool.take() for _ in range(3)] == [blocks[2], blocks[1], blocks[0]]
    pool.check()


def test_pool_refuses_a_double_release() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.release(block, keep=False)
    with pytest.raises(RuntimeError, match="more often"):
        pool.release(block, keep=False)


def test_lookup_finds_full_blocks_and_leaves_one_token() -> None:
    manager = make_manager(8, BLOCK)
    tokens = list(range(8))
    table = computed(manager, tokens)
    assert manager.lookup(BlockTable(), tokens).held == table.held[:1]  # the last token is always computed
    assert manager.lookup(BlockTable(), [*tokens, 9]).held == table.held
    assert manager.lookup(BlockTable(), [0, 1, 2, 3, 9, 9, 9, 9, 9]).held == table.held[:1]
    assert not manager.lookup(BlockTable(), [1, *tokens])


def test_a_sliding_window_gives_blocks_back() -> None:
    manager = make_manager(20, BLOCK, windows=(6,))
    tokens = list(range(40))
    table = computed(manager, tokens)
    for count in range(1, 41):
        manager.release_passed(table, count)
        # A token at `count` sees the 5 before it, and one of a fork up to a block more.
        assert table.num_released[0] * BLOCK <= max(0, count - 5 - BLOCK)
    assert table.num_released == [7]
    assert manager.num_used_blocks == 3
    manager.check([table])
    child = manager.fork(table, 40)
    assert child.held == table.held[:2]
    manager.check([table, child])
    manager.free(table)
    manager.free(child)
    manager.check([])
    assert manager.lookup(BlockTable(), [*tokens, 1]), "what was given back can still be found"


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        ((None,) * 4, [(None, 4)]),
        ((6,) * 4, [(6, 4)]),
        ((6, None) * 6, [(None, 6), (6, 6)]),
        ((6, 6, None) * 4, [(None, 4), (6, 4), (6, 4)]),
        ((*(6,) * 25, None), [(None, 1), *[(6, 2)] * 12, (6, 1)]),
    ],
)
def test_layers_are_grouped(windows: tuple[int | None, ...], groups: list[tuple[int | None, int]]) -> None:
    found = group_layers(dict(enumerate(windows)))
    assert [(group.window, len(group.layers)) for group in found] == groups
    assert sorted(layer for group in found for layer in group.layers) == list(range(len(windows)))
    assert all(windows[layer] == group.window for group in found for layer in group.layers)


@pytest.mark.parametrize(
    ("windows", "sizes", "caches"),
    [
        ((6, 6, 6, 6, 6, None) * 5, [(None, 5), *[(6, 3)] * 8, (6, 1)], 3),  # as in Gemma 4 26B A4B
        ((6, 6, 6, 6, 6, None) * 10, [(None, 10), *[(6, 5)] * 10], 5),  # as in Gemma 4 31B
    ],
)
def test_layers_that_share_caches_are_grouped(
    windows: tuple[int | None, ...], sizes: list[tuple[int | None, int]], caches: int
) -> None:
    """Two layers without a window have room where one with a window has."""

    def per_cache(layer: int) -> int:
        return 2 if windows[layer] is None else 1

    found = group_layers(dict(enumerate(windows)), per_cache=per_cache)
    assert [(group.window, len(group.layers)) for group in found] == sizes
    assert most_caches(found, per_cache) == caches


@pytest.mark.parametrize("windows", [(None,) * 4, (6, None) * 6, (6, 6, None) * 4, (*(6,) * 25, None)])
@pytest.mark.parametrize("last", [1, 2, 7])
def test_stages_have_the_same_groups_of_their_own_layers(windows: tuple[int | None, ...], last: int) -> None:
    whole, cut = group_layers(dict(enumerate(windows))), len(windows) - min(last, len(windows) - 1)
    stages = [group_layers(dict(enumerate(windows)), own) for own in (range(cut), range(cut, len(windows)))]
    for stage, own in zip(stages, (range(cut), range(cut, len(windows))), strict=True):
        assert [group.window for group in stage] == [group.window for group in whole]
        assert sorted(layer for group in stage for layer in group.layers) == list(own)
        assert all(windows[layer] == group.window for group in stage for layer in group.layers)
        assert max(len(group.layers) for group in stage) <= max(len(group.layers) for group in whole)


def test_a_group_with_a_window_holds_and_needs_what_the_window_sees() -> None:
    manager = make_manager(40, BLOCK, windows=(None, 6), max_num_batched_tokens=8)
    tokens = list(range(60))
    table = BlockTable()
    for count in range(4, 61, 4):
        assert manager.allocate(table, count) is not None
        manager.make_findable(table, tokens, count)
        manager.release_passed(table, count)
    assert manager.num_used_blocks == 15 + 3
    manager.free(table)
    # The window's blocks that were released first have been overwritten by now; the last ones are still there.
    other = BlockTable()
    assert manager.allocate(other, 4 * 10) is not None
    found = manager.lookup(BlockTable(), [*tokens, 0])
    assert (len(found), found.first) == (15, [0, 13])
    again = BlockTable()
    assert manager.has_room(again, 64, found)
    assert manager.allocate(again, 61, found) is not None
    assert manager.num_used_blocks == 2 * 10 + (15 + 2) + 2
    manager.check([other, again])
    # Without the last ones, the rest is of no use.
    manager.free(again)
    manager.free(other)
    assert manager.allocate(BlockTable(), 4 * 11) is not None
    assert len(manager.lookup(BlockTable(), [*tokens[:32], 0])) == 0


def test_what_the_device_forgets_is_copied_to_the_host_and_back() -> None:
    manager = make_manager(4, BLOCK, num_host_blocks=3)
    first, second = list(range(16)), list(range(100, 116))
    table = computed(manager, first)
    blocks = table.held
    manager.free(table)
    assert take_copies(manager) == ([], [])
    table = computed(manager, second)  # takes all four blocks, the first prompt's last one first
    copied_out, copied_in = take_copies(manager)
    # The host has room for three, and the first prompt's end, which was evicted first, is dropped.
    assert {device for device, _ in copied_out} == set(blocks[:3])
    assert len({host for _, host in copied_out}) == 3
    assert copied_in == []
    manager.free(table)
    assert manager.lookup(BlockTable(), first).hits == Hits(memory=3)
    manager.check([])


def test_the_host_tier_forgets_what_was_unused_for_longest_and_nothing_that_is_on_its_way() -> None:
    manager = make_manager(2, BLOCK, num_host_blocks=2)
    prompts = [[start + index for index in range(9)] for start in (0, 100, 200)]
    tables = []
    for prompt in prompts[:2]:
        table = computed(manager, prompt[:8])
        tables.append(table.held)
        manager.free(table)
    copied_out, _ = take_copies(manager)
    assert len(copied_out) == 2
    again = BlockTable()
    found = manager.lookup(again, prompts[0])
    assert (found.held, found.hits) == ([], Hits(memory=2))
    # Allocating its blocks evicts the second prompt's to the host, but not over the blocks that are being copied in.
    assert manager.allocate(again, 8, found) == []
    copied_out, copied_in = take_copies(manager)
    assert copied_out == []
    assert len(copied_in) == 2
    assert [device for _, device in copied_in] == again.held
    blocks = again.held
    manager.free(again)
    assert manager.lookup(BlockTable(), prompts[0]).held == blocks
    manager.clear()
    assert not manager.lookup(BlockTable(), prompts[0])
    manager.check([])


def test_salt_separates_tenants() -> None:
    manager = make_manager(8, BLOCK)
    tokens = list(range(9))
    table = computed(manager, tokens, "a")
    assert not manager.lookup(BlockTable("b"), tokens)
    assert manager.lookup(BlockTable("a"), tokens).held == table.held[:2]


def test_freed_blocks_stay_findable_until_overwritten_end_first() -> None:
    manager = make_manager(3, BLOCK)
    tokens = list(range(12))
    manager.free(computed(manager, tokens))
    assert manager.num_used_blocks == 0
    other = BlockTable()
    manager.allocate(other, BLOCK)
    assert len(manager.lookup(BlockTable(), [*tokens, 0])) == 2
    manager.check([other])


def test_revived_blocks_are_not_counted_as_room() -> None:
    manager = make_manager(3, BLOCK)
    tokens = list(range(8))
    manager.free(computed(manager, tokens))
    longer = list(range(12))
    table = BlockTable()
    found = manager.lookup(table, longer)
    assert len(found) == 2
    assert not manager.has_room(table, 16, found)
    assert manager.allocate(table, 16, found) is None
    assert manager.num_used_blocks == 0
    assert manager.allocate(table, 12, found) is not None
    manager.check([table])


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("prompt", "shared"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_fork_shares_full_blocks_but_the_last_token(caching: bool, prompt: int, shared: int) -> None:
    manager = make_manager(8, BLOCK, caching)
    table = computed(manager, list(range(prompt)))
    child = manager.fork(table, prompt)
    assert child.held == table.held[:shared]
    manager.check([table, child])
    manager.free(table)
    manager.check([child])
    manager.free(child)
    assert manager.num_used_blocks == 0


def with_states(num_snapshots: int, every: int = 2) -> KvCacheManager:
    """A manager of 24 blocks for a model with recurrent layers, whose states are saved after `every` blocks."""
    facts = KvCacheFacts(
        num_blocks=24, block_size=BLOCK, max_num_batched_tokens=0, has_states=True, num_snapshots=num_snapshots,
        snapshot_tokens=every * BLOCK,
    )  # fmt: skip
    return KvCacheManager(facts, CacheOptions())


def computed_with_states(manager: KvCacheManager, token_ids: list[int], ends: list[int], prompt: int) -> BlockTable:
    """A table whose tokens were computed in steps that end at `ends`, of which the first `prompt` are a prompt."""
    table = BlockTable()
    assert manager.allocate(table, len(token_ids)) is not None
    for end in ends:
        manager.place_snapshot(table, end, prompt)
        manager.book(table, token_ids, end)
    return table


def begins_at(manager: KvCacheManager, token_ids: list[int]) -> int:
    """With how many tokens computed a sequence begins, which needs a saved state if there are any."""
    found = manager.lookup(BlockTable(), token_ids)
    assert (found.state is not None) == (len(found) > 0)
    return len(found) * BLOCK


def test_sequences_begin_where_a_state_is_saved() -> None:
    manager, tokens = with_states(8), list(range(8 * BLOCK))
    table = computed_with_states(manager, tokens, [BLOCK, 2 * BLOCK, 4 * BLOCK, 7 * BLOCK], prompt=7 * BLOCK)
    assert begins_at(manager, tokens) == 4 * BLOCK  # not after 7 blocks, which are no multiple of 2
    assert begins_at(manager, tokens[: 4 * BLOCK]) == 2 * BLOCK  # at least one token is computed
    assert begins_at(manager, [*tokens[: 3 * BLOCK], 99]) == 2 * BLOCK
    assert begins_at(manager, [*tokens[: 2 * BLOCK - 1], 99, 99]) == 0
    fork = manager.fork(table, 7 * BLOCK)
    assert not fork.held
    manager.check([table, fork])
    manager.free(table)
    assert begins_at(manager, tokens) == 4 * BLOCK
    manager.clear()
    assert begins_at(manager, tokens) == 0
    manager.check([])


def test_where_prompts_part_is_told() -> None:
    manager, tokens = with_states(8), list(range(8 * BLOCK))
    computed_with_states(manager, tokens, [7 * BLOCK], prompt=7 * BLOCK)
    table = BlockTable()
    assert not manager.lookup(table, [*tokens[: 5 * BLOCK], 99])
    assert table.branch == 4 * BLOCK
    other = BlockTable()
    assert not manager.lookup(other, [99, *tokens])
    assert other.branch == 0


def test_replaced_states_are_overwritten_first() -> None:
    manager, tokens, other = with_states(4), list(range(12 * BLOCK)), list(range(500, 500 + 4 * BLOCK))
    second = computed_with_states(manager, other, [2 * BLOCK], prompt=4 * BLOCK)
    table = computed_with_states(manager, tokens, [2 * BLOCK, 4 * BLOCK, 6 * BLOCK], prompt=7 * BLOCK)
    ends = range(2 * BLOCK, 14 * BLOCK, 2 * BLOCK)

    def kept() -> list[int]:
        return [end // BLOCK for end in ends if begins_at(manager, [*tokens[:end], 99]) == end]

    assert kept() == [2, 4, 6]
    for end, expected in ((8, [4, 6, 8]), (10, [6, 8, 10]), (12, [6, 10, 12])):  # 6 is the last one of the prompt
        manager.place_snapshot(table, end * BLOCK, 7 * BLOCK)
        manager.book(table, tokens, end * BLOCK)
        assert kept() == expected
        assert begins_at(manager, other) == 2 * BLOCK  # though it is older
    manager.check([table, second])


def test_a_replaced_state_that_was_used_stays() -> None:
    manager, tokens = with_states(3), list(range(12 * BLOCK))
    table = computed_with_states(manager, tokens, [2 * BLOCK], prompt=12 * BLOCK)
    user = BlockTable()
    assert manager.allocate(user, 3 * BLOCK, manager.lookup(user, tokens[: 3 * BLOCK])) is not None
    assert manager.begin_states(user) == 0
    assert manager.begin_states(user) == -1
    manager.take_transfers()  # its step is planned, so what it began with may be overwritten
    for end in (4, 6, 8):
        manager.place_snapshot(table, end * BLOCK, 12 * BLOCK)
        manager.book(table, tokens, end * BLOCK)
    assert [begins_at(manager, [*tokens[: end * BLOCK], 99]) // BLOCK for end in (2, 4, 6, 8)] == [2, 2, 6, 8]
    manager.check([table, user])


def test_what_sequences_begin_with_is_not_overwritten_before_they_do() -> None:
    manager, tokens = with_states(1), list(range(3 * BLOCK))
    table, user, other = (
        computed_with_states(manager, tokens, [2 * BLOCK], prompt=3 * BLOCK),
        BlockTable(),
        BlockTable(),
    )
    assert manager.allocate(other, 2 * BLOCK) is not None
    assert manager.allocate(user, 3 * BLOCK, manager.lookup(user, tokens)) is not None
    assert manager.place_snapshot(other, 2 * BLOCK, 2 * BLOCK) is None
    manager.begin_states(user)
    assert manager.place_snapshot(other, 2 * BLOCK, 2 * BLOCK) is None
    manager.check([table, user, other])
    manager.take_transfers()
    assert manager.place_snapshot(other, 2 * BLOCK, 2 * BLOCK) == 0
    manager.check([table, user, other])


def test_who_ends_before_it_begins_releases_the_state() -> None:
    manager, tokens = with_states(1), list(range(3 * BLOCK))
    user = BlockTable()
    manager.free(computed_with_states(manager, tokens, [2 * BLOCK], prompt=3 * BLOCK))
    assert manager.allocate(user, 3 * BLOCK, manager.lookup(user, tokens)) is not None
    manager.free(user)
    manager.check([])


def test_places_that_are_awaited_are_not_given_twice() -> None:
    manager, tokens = with_states(1), list(range(4 * BLOCK))
    tables = [BlockTable(), BlockTable()]
    for table in tables:
        manager.allocate(table, len(tokens))
    assert manager.place_snapshot(tables[0], 2 * BLOCK, len(tokens)) == 0
    assert manager.place_snapshot(tables[1], 2 * BLOCK, len(tokens)) is None
    manager.free(tables[0])  # before the step has ended
    assert manager.place_snapshot(tables[1], 2 * BLOCK, len(tokens)) == 0
    manager.check(tables)
    manager.book(tables[1], tokens, 2 * BLOCK)
    assert manager.place_snapshot(tables[1], 2 * BLOCK, len(tokens)) is None  # it is saved
    manager.clear(tables)
    assert manager.place_snapshot(tables[1], 4 * BLOCK, len(tokens)) is None  # it must not become findable
    manager.check(tables)


def test_without_saved_states_nothing_is_shared() -> None:
    facts = KvCacheFacts(num_blocks=8, block_size=BLOCK, max_num_batched_tokens=0, has_states=True)
    manager, tokens = KvCacheManager(facts, CacheOptions()), list(range(3 * BLOCK))
    table = computed(manager, tokens)
    manager.book(table, tokens, len(tokens))
    assert not manager.fork(table, len(tokens)).held
    assert not manager.lookup(BlockTable(), [*tokens, 1])
    manager.free(table)
    assert not manager.lookup(BlockTable(), [*tokens, 1])
    assert manager.take_changes() is None
    manager.check([])


def events(manager: KvCacheManager) -> list[KvEvent]:
    changes = manager.take_changes()
    return changes.events if changes else []


def digest(keys: Iterable[int]) -> Digest:
    keys = list(keys)
    return Digest(len(keys), reduce(xor, keys, 0))


def test_events_tell_the_story_and_the_contents_the_state() -> None:
    manager = make_manager(2, BLOCK)
    tokens = list(range(8))
    keys = block_keys(tokens, BLOCK)
    table = computed(manager, tokens)
    assert events(manager) == [BlocksStored(Tier.DEVICE, keys, parent=0)]
    assert manager.contents().hashes == {Tier.DEVICE: table.hashes, Tier.HOST: []}
    manager.free(table)
    manager.allocate(BlockTable(), BLOCK)
    assert events(manager) == [BlocksRemoved(Tier.DEVICE, [keys[1]])]
    manager.clear()
    assert events(manager) == [CacheCleared()]
    assert manager.take_changes() is None
    assert manager.contents().hashes == {Tier.DEVICE: [], Tier.HOST: []}


def test_each_move_between_the_tiers_is_told() -> None:
    manager = make_manager(2, BLOCK, num_host_blocks=2)
    first, second = list(range(9)), list(range(100, 109))
    keys, others = block_keys(first, BLOCK), block_keys(second, BLOCK)
    manager.free(computed(manager, first[:8]))
    events(manager)
    manager.free(computed(manager, second[:8]))
    # Blocks at a sequence's end are evicted first.
    assert events(manager) == [
        BlocksRemoved(Tier.DEVICE, keys[::-1]),
        BlocksStored(Tier.DEVICE, others, parent=0),
        BlocksStored(Tier.HOST, keys[::-1], parent=0),
    ]
    assert manager.contents().digests == {Tier.DEVICE: digest(others), Tier.HOST: digest(keys)}
    # Blocks copied back to the device also stay on the host, which has no room for those that they evict.
    take_copies(manager)
    table = BlockTable()
    assert manager.allocate(table, 8, manager.lookup(table, first)) is not None
    changes = manager.take_changes()
    assert changes is not None
    assert changes.events == [
        BlocksRemoved(Tier.DEVICE, others[::-1]),
        BlocksStored(Tier.DEVICE, keys, parent=0),
    ]
    assert changes.digests == {Tier.DEVICE: digest(keys), Tier.HOST: digest(keys)}
    # Other blocks evict them from the host tier in turn.
    manager.free(table)
    take_copies(manager)
    manager.free(computed(manager, second[:8]))
    manager.free(computed(manager, list(range(200, 208))))
    gone = [event.keys for event in events(manager) if isinstance(event, BlocksRemoved) and event.tier is Tier.HOST]
    assert sorted(itertools.chain(*gone)) == sorted(keys)
    assert manager.contents().digests[Tier.HOST] == digest(others)
    manager.clear()
    assert manager.contents().digests == {Tier.DEVICE: Digest(), Tier.HOST: Digest()}


def test_events_tell_what_blocks_from_the_host_hold() -> None:
    """They are one event with the blocks computed after them, which has the contents of all."""
    facts = KvCacheFacts(num_blocks=4, block_size=BLOCK, max_num_batched_tokens=0, windows=(None, 6))
    config = {"enable_kv_cache_events": True, "publisher": "zmq"}
    manager = KvCacheManager(facts, CacheOptions(kv_events_config=config), HostTier(8))
    tokens = list(range(8))
    for prompt in (tokens, list(range(100, 108))):
        manager.free(computed(manager, prompt))
        take_copies(manager)
    events(manager)
    table = BlockTable(adapter="a")
    assert not manager.lookup(table, [*tokens, 0])
    table, longer = BlockTable(), [*tokens[:4], 50, 51, 52, 53]
    assert manager.allocate(table, 8, manager.lookup(table, longer)) is not None
    manager.make_findable(table, longer, 8)
    [stored] = [each for each in events(manager) if isinstance(each, BlocksStored) and each.tier is Tier.DEVICE]
    assert [each.token_ids for each in stored.contents] == [longer[:4], longer[4:]]
    assert stored.keys == block_keys(longer, BLOCK)


def test_a_chain_is_one_event_and_a_branch_another() -> None:
    manager = make_manager(8, BLOCK)
    computed(manager, list(range(8)))
    computed(manager, [*range(8), *range(50, 58)])
    computed(manager, [*range(4), *range(70, 74)])
    keys = block_keys([*range(8), *range(50, 58)], BLOCK)
    branch = block_keys([*range(4), *range(70, 74)], BLOCK)
    # The second prompt directly continues the first: they are one chain.
    assert events(manager) == [
        BlocksStored(Tier.DEVICE, keys, parent=0), BlocksStored(Tier.DEVICE, branch[1:], parent=keys[0]),
    ]  # fmt: skip


def test_digests_bear_two_blocks_of_one_key() -> None:
    recorder = TierRecorder(Tier.DEVICE)
    one, other = b"k" * 8 + b"1" * 24, b"k" * 8 + b"2" * 24
    recorder.stored(one, b"")
    recorder.stored(other, b"")
    recorder.removed(one)
    assert recorder.digest() == Digest(1, block_key(other))


async def test_log_numbers_batches_and_knows_its_gap() -> None:
    log = EventLog(kept_batches=2)
    assert log.keeps(1)
    waiting = asyncio.create_task(log.wait(1))
    await asyncio.sleep(0)
    for _ in range(3):
        log.append(Changes([CacheCleared()], {}))
    await waiting
    assert not log.keeps(1)
    assert log.keeps(2)
    assert log.keeps(4)
    assert not log.keeps(5)
    assert [batch.sequence for batch in log.since(3)] == [3]
    assert log.since(4) == []


class KvCacheMachine(RuleBasedStateMachine):
    """Random tables over a small cache. The model records each block's contents, written by whoever computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = make_manager(10, BLOCK, num_host_blocks=5)
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.contents: dict[int, tuple[int, ...]] = {}
        self.on_host: dict[int, tuple[int, ...]] = {}
        self.index: dict[Tier, set[int]] = {tier: set() for tier in Tier}

    @rule(length=st.integers(1, 20), start=st.integers(0, 1), salt=st.sampled_from(["", "x"]))
    def begin(self, length: int, start: int, salt: str) -> None:
        tokens = list(range(start, start + length))
        table = BlockTable(salt)
        found = self.manager.lookup(table, tokens)
        if self.manager.allocate(table, length, found) is not None:
            self._copy()
            for index, block in enumerate(table.held[: len(found)]):
                assert self.contents[block] == (hash(salt), *tokens[: (index + 1) * BLOCK])
            self.tables.append((table, tokens))
            self._write(table, tokens, len(found))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(1, 6))
    def extend(self, data: st.DataObject, count: int) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        longer = [*tokens, *range(50, 50 + count)]
        if self.manager.allocate(table, len(longer)) is not None:
            self._copy()
            first = len(tokens) // BLOCK
            tokens[:] = longer
            self._write(table, tokens, first)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        child = self.manager.fork(table, len(tokens))
        if self.manager.allocate(child, len(tokens)) is None:
            self.manager.free(child)
            return
        self._copy()
        self.tables.append((child, list(tokens)))
        self._write(child, tokens, (len(tokens) - 1) // BLOCK)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.tables))
        self.tables = [other for other in self.tables if other is not entry]
        self.manager.free(entry[0])

    @rule()
    def clear(self) -> None:
        self.manager.clear()

    def _copy(self) -> None:
        """Copies between device and host, as a step would."""
        copies_out, copies_in = take_copies(self.manager)
        for device, host in copies_out:
            self.on_host[host] = self.contents[device]
        for host, device in copies_in:
            self.contents[device] = self.on_host[host]

    def _write(self, table: BlockTable, tokens: list[int], first: int) -> None:
        for index, block in enumerate(table.held[first:], start=first):
            self.contents[block] = (hash(table.cache_salt), *tokens[: (index + 1) * BLOCK])
        self.manager.make_findable(table, tokens, len(tokens))

    @invariant()
    def nothing_is_lost_or_overwritten(self) -> None:
        self.manager.check([table for table, _ in self.tables])
        for table, tokens in self.tables:
            for index, block in enumerate(table.held):
                assert self.contents[block] == (hash(table.cache_salt), *tokens[: (index + 1) * BLOCK])

    @invariant()
    def events_lead_to_the_state(self) -> None:
        changes = self.manager.take_changes()
        for event in changes.events if changes else []:
            if isinstance(event, CacheCleared):
                self.index = {tier: set() for tier in Tier}
                continue
            keys = set(event.keys)
            assert len(keys) == len(event.keys)
            if isinstance(event, BlocksStored):
                assert not self.index[event.tier] & keys
                self.index[event.tier] |= keys
            else:
                assert self.index[event.tier] >= keys
                self.index[event.tier] -= keys
        contents = self.manager.contents()
        assert self.index == {tier: {block_key(each) for each in hashes} for tier, hashes in contents.hashes.items()}
        assert contents.digests == {tier: digest(keys) for tier, keys in self.index.items()}
        assert changes is None or changes.digests == contents.digests

    @rule(length=st.integers(1, 20), start=st.integers(0, 1), salt=st.sampled_from(["", "x"]))
    def predict(self, length: int, start: int, salt: str) -> None:
        """The blocks that an index predicts for a prompt are those that a lookup finds."""
        tokens = list(range(start, start + length))
        found = self.manager.lookup(BlockTable(salt), tokens)
        keys = block_keys(tokens[:-1], BLOCK, salt)
        device = list(itertools.takewhile(self.index[Tier.DEVICE].__contains__, keys))
        host = list(itertools.takewhile(self.index[Tier.HOST].__contains__, keys[len(device) :]))
        assert found.hits == Hits(len(device), len(host))


TestKvCacheMachine = KvCacheMachine.TestCase
TestKvCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
