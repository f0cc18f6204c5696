"""The startup benchmark: what it does before a start, and what it reports about one that fails."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest

from benchmarks.startup import bring_memory, measure

SIZE, HUGE_PAGE = 256 << 20, 2 << 20


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_memory_is_touched_and_given_back() -> None:
    before, faults = held(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bring_memory(SIZE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults >= SIZE // HUGE_PAGE
    assert held() - before < SIZE // 4


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(SystemExit, match=r"(?s)does not become ready:.*/nowhere"):
        measure(lambda: False, ["engine", "/nowhere"])
