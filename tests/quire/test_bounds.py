"""Limits of request parameters, and what values mean."""

from __future__ import annotations

import numpy as np
import pytest

from quire.bounds import is_greedy


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-38, True), (9e-6, True), (1e-5, False), (1, False)])
def test_greedy_temperatures(temperature: float, greedy: bool) -> None:
    """The gateway tests the number parsed from JSON, the engine its 32-bit form: both must agree."""
    assert is_greedy(temperature) == is_greedy(float(np.float32(temperature))) == greedy
