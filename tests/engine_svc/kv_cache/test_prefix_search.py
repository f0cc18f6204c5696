"""The longest prefix that is cached, against trying every length."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.kv_cache import prefix_search
from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.none import NoConnector
from engine_svc.kv_cache.prefix import ABSENT, Hits
from engine_svc.kv_cache.prefix_cache import PrefixCache
from engine_svc.kv_cache.prefix_search import PrefixSearch

BLOCK = 4
HASHES = [bytes([index]) for index in range(12)]
Sets = list[set[int]]  # of blocks, by group


class Elsewhere(NoConnector):
    """A connector that has some blocks, and counts how often it is asked for one."""

    def __init__(self, kept: Sequence[set[int]]) -> None:
        self._kept = kept
        self.asked = 0

    def has(self, name: BlockName) -> bool:
        self.asked += 1
        return name.block_hash[0] in self._kept[name.group]

    def wait_seconds(self, names: Sequence[BlockName]) -> float:
        return float(len(names))


def make_search(
    windows: Sequence[int | None], here: Sequence[set[int]], kept: Sequence[set[int]]
) -> tuple[PrefixSearch, Elsewhere]:
    """Block n of a group is the device's block 100 x group + n, where that has it."""
    caches = [PrefixCache(None) for _ in windows]
    for group, cache in enumerate(caches):
        for index in here[group]:
            cache.store(100 * group + index, HASHES[index], b"")
    connector = Elsewhere(kept)
    return PrefixSearch(windows, BLOCK, caches), connector


def seen(window: int | None, count: int) -> range:
    """The blocks that the token after `count` blocks sees."""
    return range(0 if window is None else max(0, count * BLOCK - window + 1) // BLOCK, count)


def tried(windows: Sequence[int | None], cached: Sequence[set[int]]) -> int:
    return max(
        count for count in range(len(HASHES) + 1)
        if all(blocks.issuperset(seen(window, count)) for window, blocks in zip(windows, cached, strict=True))
    )  # fmt: skip


def blocks(groups: int) -> st.SearchStrategy[Sets]:
    """Sets with few gaps."""
    one = st.builds(
        lambda gaps: set(range(len(HASHES))) - gaps, st.sets(st.integers(0, len(HASHES) - 1), max_size=5)
    )  # fmt: skip
    return st.lists(one, min_size=groups, max_size=groups)


@given(data=st.data(), windows=st.lists(st.sampled_from([None, 3, 9, 22]), min_size=1, max_size=3))
def test_the_longest_prefix_is_found(data: st.DataObject, windows: list[int | None]) -> None:
    here, kept = data.draw(blocks(len(windows))), data.draw(blocks(len(windows)))
    search, connector = make_search(windows, here, kept)
    count = search.longest(HASHES)
    assert count == tried(windows, here)
    assert connector.asked == 0
    longest = search.longest(HASHES, connector)
    assert longest == tried(windows, [some | more for some, more in zip(here, kept, strict=True)])
    found = search.prefix(HASHES, Hits(count, elsewhere=longest - count), None, connector)
    assert len(found) == longest
    for group, window in enumerate(windows):
        assert found.first[group] == seen(window, longest).start
        for index in seen(window, longest):
            assert found.block_ids[group][index] == (100 * group + index if index in here[group] else ABSENT)
    absent = found.names(HASHES)
    assert found.wait_seconds == (len(absent) or None)
    assert set(absent) == {
        BlockName(HASHES[index], group)
        for group, window in enumerate(windows) for index in seen(window, longest) if index not in here[group]
    }  # fmt: skip


def test_no_end_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where storage has lost what windows see, a long prompt would ask it for every block."""
    monkeypatch.setattr(prefix_search, "_MOST_GAPS", 4)
    everything: set[int] = set(range(len(HASHES)))
    search, connector = make_search([None, 9], [everything, set()], [set(), {0, 1}])
    assert search.longest(HASHES, connector) == 0
    assert connector.asked == 4
    search, connector = make_search([None, 9], [everything, set()], [set(), everything - {10, 11}])
    assert search.longest(HASHES, connector) == 10
