"""Timelines computed from made-up spans."""

from __future__ import annotations

import pytest

from benchmarks.timeline import Span, Timeline, report, short


def test_busy_times_and_gaps_add_up() -> None:
    timeline = Timeline()
    timeline.add([Span("b", 12, 15), Span("a", 0, 10), Span("beside", 2, 6), Span("b", 15, 18)])
    timeline.add([])
    timeline.add([Span("a", 100, 104), Span("b", 108, 110)])
    assert timeline.busy == {"a": [10, 4], "beside": [4], "b": [3, 3, 2]}
    assert timeline.gaps == {"a → b": [2, 4]}
    assert timeline.whole == 18 + 10


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    timeline = Timeline()
    timeline.add([Span("product", 0, 1000), Span("tiny", 1000, 1001), Span("norm", 1101, 1201)])
    report(timeline, 2, 0.7)
    printed = capsys.readouterr().out
    assert "`600 µs a step with the profiler, 700 without; nothing runs for 50 µs of it.`" in printed
    assert "| product | 0.5 | 1000.0 | 500.0 | 83.3% |" in printed
    assert "| gap: tiny → norm | 0.5 | 100.0 | 50.0 | 8.3% |" in printed
    assert "| tiny |" not in printed  # too small to be listed


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("void at::native::reduce_kernel<512, 1>(int)", "at::native::reduce_kernel"),
        ("_attend_kernel", "_attend_kernel"),
        ("a|b", "a/b"),
    ],
)
def test_names_are_short(name: str, told: str) -> None:
    assert short(name) == told
