"""One kernel that rotates and writes to the cache equals, bit for bit, the two separate ones."""

from __future__ import annotations

import pytest
import torch

from engine_svc.kernels.cache_write import write_cache
from engine_svc.kernels.rotary import Slots, rotate

TOKENS, NUM_QUERY, NUM_KEY = 4, 3, 2  # few, because each is a program for Triton's interpreter


# Each data type with half of the combinations of the rest, all of which every cache and dimension meets.
@pytest.mark.parametrize(
    ("dtype", "with_norms", "interleaved", "sharing"),
    [
        (torch.float32, False, False, 1), (torch.float32, True, True, 2), (torch.float16, False, True, 2),
        (torch.float16, True, False, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cached", [None, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(("dim", "rotated"), [(16, 16), (80, 80), (64, 22), (32, 0)])
def test_rotated_keys_are_cached(
    dtype: torch.dtype, with_norms: bool, interleaved: bool, sharing: int, cached: torch.dtype | None, dim: int,
    rotated: int,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    wider = torch.randn(TOKENS, NUM_QUERY + 2 * NUM_KEY + 1, dim).to(dtype)
    heads, angles = wider[:, : NUM_QUERY + 2 * NUM_KEY], torch.randn(TOKENS, rotated // 2)
    table = torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype)
    norms = (torch.randn(dim).to(dtype), torch.randn(dim).to(dtype), 1e-6) if with_norms else None
    slots = torch.tensor([37, 2, -1, 16])  # one in each block; that of the third token is on another rank
    # Of two layers that share the memory of each block, the second one.
    caches = [torch.zeros(2, 3, sharing * 16, NUM_KEY, dim, dtype=cached or dtype) for _ in range(2)]
    cache, expected_cache = (each[:, :, -16:] for each in caches)
    expected = wider.clone()
    query_key, value = expected[:, : NUM_QUERY + NUM_KEY], expected[:, NUM_QUERY + NUM_KEY : NUM_QUERY + 2 * NUM_KEY]
    rotate(query_key, table, NUM_QUERY, norms, interleaved)
    write_cache(query_key[:, NUM_QUERY:], value, expected_cache, slots)

    untouched = wider[:, NUM_QUERY:].clone()
    rotate(heads, table, NUM_QUERY, norms, interleaved, Slots(cache, slots))
    assert wider[:, :NUM_QUERY].equal(expected[:, :NUM_QUERY])
    assert wider[:, NUM_QUERY:].equal(untouched)
    assert cache.view(torch.uint8).equal(expected_cache.view(torch.uint8))
    assert cache.view(torch.uint8).any(dim=-1).sum() == 2 * NUM_KEY * (TOKENS - 1)
