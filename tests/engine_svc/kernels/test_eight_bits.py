"""The e4m3 bytes that kernels compute on GPUs without this type are those of torch."""

from __future__ import annotations

import torch

from engine_svc.attention.stored import bits, to_stored
from engine_svc.kernels.cache_write import write_cache


def test_numbers_are_rounded_as_torch_does() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    strange = torch.tensor([1e6, -1e6, 1e-9, torch.inf, -torch.inf, torch.nan])
    values = torch.cat((numbers, ties, ties * 1.001, ties * 0.999, torch.randn(500) * 20, strange))
    values = values[: len(values) // 16 * 16].view(-1, 1, 16)
    cache = torch.zeros(2, len(values), 1, 1, 16, dtype=torch.float8_e4m3fn)
    write_cache(values, -values, cache, torch.arange(len(values)))
    for plane, expected in zip(cache, (values, -values), strict=True):
        wide = to_stored(expected, torch.float8_e4m3fn)[:, :, None].view(len(values), 1, 1, 16)
        known = ~wide.float().isnan()
        assert bits(plane)[known].equal(bits(wide)[known])
        assert plane.float().isnan().equal(~known)
