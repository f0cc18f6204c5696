"""The chained block hash."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.block_hash import HASH_BYTES, block_hash, block_keys, extend_hashes, root_hash

token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=60)


def hashes_of(tokens: list[int], block_size: int, salt: str = "") -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, block_size, salt)
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


def test_blocks_of_a_prompt_that_is_no_token_ids_are_named_by_its_content() -> None:
    """The salt counts as for other prompts, and no content or salt can make one kind's root equal the other's."""
    contents = [hashlib.sha256(bytes([number])).digest() for number in range(3)]
    roots = {root_hash(salt, content) for salt in ("", "a") for content in (b"", *contents)}
    assert len(roots) == 8
    assert root_hash("", contents[0]) == hashlib.sha256(b"quire.v1.content" + contents[0]).digest()
    grown = block_keys(list(range(9)), 4, "a", contents[0])
    assert not set(grown) & set(block_keys(list(range(9)), 4, "a", contents[1]))
    assert not set(grown) & set(block_keys(list(range(9)), 4, "a"))


def test_an_adapters_blocks_are_its_own() -> None:
    roots = {
        root_hash(salt, content, adapter)
        for salt in ("", "a")
        for content in (b"", b"c" * 32)
        for adapter in ("", "a", "b")
    }
    assert len(roots) == 12
    assert root_hash("", b"", "a") == hashlib.sha256(b"quire.v1.adapter" + root_hash() + b"a").digest()
    assert block_keys(range(8), 4, adapter="a") != block_keys(range(8), 4)
