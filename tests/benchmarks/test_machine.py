"""The line above a benchmark's tables."""

from benchmarks.machine import chosen_level, heading


def test_heading_names_the_level_of_the_kernels() -> None:
    assert f"CPU kernels {chosen_level('auto')};" in heading()
    assert chosen_level("auto") != "auto"
    assert chosen_level("avx2") == "avx2"
