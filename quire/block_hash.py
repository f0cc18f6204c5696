"""The chained hash that identifies a full KV block by its content and everything before it.

A block's hash covers its parent's hash and its own token ids, so equal hashes mean equal prefixes. SHA-256 is collision
resistant: nobody can forge a prompt that matches another prompt's blocks. The root covers the cache salt, which keeps
tenants apart, and the adapter that computes the blocks. Content for which token ids are mere placeholders (images,
prompts given as embeddings) is covered by the block in which it begins. The hash is the same in every process and
version, so that a fleet can share an index of it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Sequence

HASH_BYTES = 32
KEY_BYTES = 8
_DOMAIN = b"quire.v1.block"
_CONTENT_DOMAIN = b"quire.v1.content"
_ADAPTER_DOMAIN = b"quire.v1.adapter"


# The position of a prompt where content begins whose token ids are placeholders, and the content's 32-byte digest.
Content = tuple[int, bytes]


def root_hash(cache_salt: str = "", adapter: str = "") -> bytes:
    """The hash that serves as parent of a sequence's first block.

    Args:
        adapter: the revision of the low-rank adapter that computes the blocks, which identifies its weights; empty for
            none.
    """
    found = hashlib.sha256(_DOMAIN + cache_salt.encode()).digest()
    return hashlib.sha256(_ADAPTER_DOMAIN + found + adapter.encode()).digest() if adapter else found


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of the block that holds `token_ids` and follows the block with hash `parent`."""
    tokens = array("I", token_ids)
    if tokens.itemsize != 4:
        raise RuntimeError("block hashes need 32-bit token ids")
    return hashlib.sha256(parent + tokens.tobytes()).digest()


def block_key(block_hash: bytes) -> int:
    """The first 8 bytes of a hash as an integer: the block's name in indexes and on the wire.

    Two blocks share a key by accident once in 2**64; where that matters, the whole hash is compared.
    """
    return int.from_bytes(block_hash[:KEY_BYTES], "little")


def block_keys(
    token_ids: Sequence[int],
    block_size: int,
    cache_salt: str = "",
    contents: Sequence[Content] = (),
    adapter: str = "",
) -> list[int]:
    """The key of each full block of `token_ids`. See `extend_hashes`."""
    hashes: list[bytes] = []
    extend_hashes(hashes, token_ids, block_size, cache_salt, contents, adapter)
    return [block_key(each) for each in hashes]


def extend_hashes(
    hashes: list[bytes],
    token_ids: Sequence[int],
    block_size: int,
    cache_salt: str = "",
    contents: Sequence[Content] = (),
    adapter: str = "",
) -> None:
    """Appends to `hashes` the hash of each full block of `token_ids` that it lacks.

    Args:
        cache_salt, adapter: see `root_hash`.
        contents: in the order of their positions.
    """
    parent = hashes[-1] if hashes else root_hash(cache_salt, adapter)
    first = len(hashes) * block_size
    later = deque(content for content in contents if content[0] >= first)
    for start in range(first, len(token_ids) - block_size + 1, block_size):
        parent = block_hash(parent, token_ids[start : start + block_size])
        while later and later[0][0] < start + block_size:
            position, digest = later.popleft()
            place = (position - start).to_bytes(4, "little")
            parent = hashlib.sha256(_CONTENT_DOMAIN + parent + place + digest).digest()
        hashes.append(parent)
