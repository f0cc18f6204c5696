"""Where experts are placed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.parallel.placement import STRATEGIES, linear, round_robin


def test_as_vllm_has_them() -> None:
    assert linear(4, 2).slots == ((0, 1), (2, 3))
    assert round_robin(4, 2).slots == ((0, 2), (1, 3))


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(1, 40), st.integers(1, 8), st.integers(0, 9))
def test_every_expert_has_a_slot_and_every_rank_its_share(name: str, count: int, ranks: int, redundant: int) -> None:
    if count + redundant < ranks:
        with pytest.raises(ValueError, match=f"{count + redundant} experts .* {ranks} ranks"):
            STRATEGIES[name](count, ranks, redundant)
        return
    placement = STRATEGIES[name](count, ranks, redundant)
    sizes = [len(each) for each in placement.slots]
    assert len(sizes) == ranks
    assert sum(sizes) == count + redundant
    assert max(sizes) - min(sizes) <= 1
    assert placement.copies().keys() == set(range(count))
    assert {expert: [placement.slots[rank][slot] for rank, slot in where] for expert, where in
            placement.ranks_of().items()} == {e: [e] * n for e, n in placement.copies().items()}  # fmt: skip
