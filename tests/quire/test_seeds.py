"""Seeds for requests that specify none."""

from __future__ import annotations

from quire.seeds import SeedSource


def draw(seed: int | None) -> list[int]:
    source = SeedSource(seed)
    return [source.draw() for _ in range(20)]


def test_a_seed_gives_the_same_ones_again() -> None:
    assert draw(0) == draw(0) != draw(1)
    assert all(0 <= seed < 2**63 for seed in draw(3))
    assert len(set(draw(3))) == 20


def test_none_gives_others_each_time() -> None:
    assert draw(None) != draw(None)
