"""The inputs of a recorded step: token ids looked up by place, and block tables of any width."""

from __future__ import annotations

import pytest
import torch

from engine_svc.kernels.step_inputs import unpack_inputs


@pytest.mark.parametrize(("count", "width", "tokens"), [(0, 0, 5), (1, 1, 3), (3, 300, 300), (5, 7, 256)])
def test_inputs_are_unpacked(count: int, width: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randint(1000, (2000,), generator=generator)
    places = torch.randint(2000, (tokens,), generator=generator)
    places[::3] = -1  # tokens that come from elsewhere
    token_ids, tables = torch.full((tokens + 2,), -7), torch.full((2, 6, 310), -7, dtype=torch.int32)
    packed = torch.randint(500, (2 * count * width + 9,), generator=generator, dtype=torch.int32)
    unpack_inputs(known, places, token_ids, torch.tensor([count, width], dtype=torch.int32), packed, tables, 5)
    expected = torch.where(places < 0, -7, known[places.clamp(min=0)])
    assert token_ids.tolist() == [*expected.tolist(), -7, -7]
    given = packed[: 2 * count * width].view(2, count, width)
    assert tables[:, :count, :width].equal(given)
    tables[:, :count, :width] = -7
    assert (tables == -7).all()
