"""Machine rates are interpolated between the measured numbers of rows."""

from __future__ import annotations

import pytest

from benchmarks.floors import Cost
from benchmarks.rates import Machine

MACHINE = Machine(100.0, {64: 640.0, 8: 80.0, 4: 40.0})


@pytest.mark.parametrize(("rows", "rate"), [(1, 10), (4, 40), (8, 80), (36, 360), (64, 640), (1000, 640)])
def test_rates_lie_on_lines_between_what_was_measured(rows: int, rate: float) -> None:
    assert MACHINE.rate(rows) == pytest.approx(rate)


def test_a_step_takes_at_least_its_bytes_and_its_operations() -> None:
    assert Cost(bytes=200, operations=40, rows=4).seconds(MACHINE) == pytest.approx(2)
    assert Cost(bytes=200, operations=240, rows=8).seconds(MACHINE) == pytest.approx(3)
