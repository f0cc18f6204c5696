"""What a byte cache evicts, and when."""

from __future__ import annotations

from tokenizer_svc.byte_cache import ByteCache


def test_what_nobody_asks_for_goes_first() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (len(cache), cache.num_bytes) == (2, 8)


def test_what_is_put_again_counts_once() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 4)
    cache.put("a", 2, 6)
    assert (cache.get("a"), cache.num_bytes) == (2, 6)


def test_what_is_larger_than_all_of_it_is_not_kept() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 11)
    cache.put("a", 3, 11)
    assert [cache.get("a"), cache.get("b"), cache.num_bytes] == [None, None, 0]
