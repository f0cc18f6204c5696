"""The chained block hash."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.block_hash import HASH_BYTES, Content, block_hash, block_keys, extend_hashes, root_hash

token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=60)


def hashes_of(tokens: Sequence[int], block_size: int, salt: str = "", contents: Sequence[Content] = ()) -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, block_size, salt, contents)
    return hashes


def test_the_value_is_fixed() -> None:
    """Other processes, versions and languages must compute the same bytes."""
    root = hashlib.sha256(b"quire.v1.block").digest()
    assert root_hash() == root
    assert block_hash(root, [1, 2, 2**32 - 1]) == hashlib.sha256(root + struct.pack("<3I", 1, 2, 2**32 - 1)).digest()


@given(token_ids, st.integers(1, 9))
def test_one_hash_for_each_full_block(tokens: list[int], block_size: int) -> None:
    hashes = hashes_of(tokens, block_size)
    assert len(hashes) == len(tokens) // block_size
    assert all(len(value) == HASH_BYTES for value in hashes)


@given(token_ids, token_ids, st.integers(1, 5))
def test_equal_hashes_mean_equal_prefixes(first: list[int], second: list[int], block_size: int) -> None:
    for index, (a, b) in enumerate(zip(hashes_of(first, block_size), hashes_of(second, block_size), strict=False)):
        end = (index + 1) * block_size
        assert (a == b) == (first[:end] == second[:end])


@given(token_ids, st.integers(0, 60), st.integers(1, 5))
def test_growing_in_steps_gives_the_same_hashes(tokens: list[int], cut: int, block_size: int) -> None:
    grown: list[bytes] = []
    extend_hashes(grown, tokens[:cut], block_size)
    extend_hashes(grown, tokens, block_size)
    assert grown == hashes_of(tokens, block_size)


def test_salts_keep_tenants_apart() -> None:
    tokens = list(range(8))
    assert not set(hashes_of(tokens, 4, "a")) & set(hashes_of(tokens, 4, "b"))
    assert not set(hashes_of(tokens, 4, "a")) & set(hashes_of(tokens, 4))


def test_a_salt_is_needed_when_growing_from_nothing_only() -> None:
    tokens = list(range(8))
    grown = hashes_of(tokens[:4], 4, "a")
    extend_hashes(grown, tokens, 4)
    assert grown == hashes_of(tokens, 4, "a")


@pytest.mark.parametrize("token", [-1, 2**32])
def test_ids_outside_32_bits_are_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        block_hash(root_hash(), [token])


def test_content_counts_from_the_block_in_which_it_begins() -> None:
    """Blocks before it are shared with prompts without it. It cannot be confused with other content, or with none."""
    digests = [hashlib.sha256(bytes([number])).digest() for number in range(3)]
    tokens = list(range(13))
    plain = hashes_of(tokens, 4, "a")
    found = hashes_of(tokens, 4, "a", contents=((5, digests[0]),))
    assert found[0] == plain[0]
    assert found[1] == hashlib.sha256(b"quire.v1.content" + plain[1] + bytes([1, 0, 0, 0]) + digests[0]).digest()
    assert found[2] == block_hash(found[1], tokens[8:12])
    others = [
        hashes_of(tokens, 4, "a", contents=contents)
        for contents in (
            (), ((5, digests[1]),), ((6, digests[0]),), ((8, digests[0]),), ((5, digests[0]), (6, digests[1])),
            ((5, digests[1]), (6, digests[0])), ((5, digests[0]), (9, digests[1])),
        )
    ]  # fmt: skip
    assert len({tuple(each) for each in [found, *others]}) == 8
    assert others[-1][:2] == found[:2]


def test_content_may_begin_in_a_block_that_is_not_full_yet() -> None:
    contents = ((5, hashlib.sha256(b"content").digest()),)
    grown = hashes_of(range(7), 4, contents=contents)
    extend_hashes(grown, range(9), 4, contents=contents)
    assert grown == hashes_of(range(9), 4, contents=contents)


def test_an_adapters_blocks_are_its_own() -> None:
    roots = {root_hash(salt, adapter) for salt in ("", "a") for adapter in ("", "a", "b")}
    assert len(roots) == 6
    assert root_hash("", "a") == hashlib.sha256(b"quire.v1.adapter" + root_hash() + b"a").digest()
    assert block_keys(range(8), 4, adapter="a") != block_keys(range(8), 4)
