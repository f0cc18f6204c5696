"""What a request may ask for, and what it means."""

from __future__ import annotations

import numpy as np
import pytest

from quire.bounds import is_greedy


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-38, True), (9e-6, True), (1e-5, False), (1, False)])
def test_greedy_temperatures(temperature: float, greedy: bool) -> None:
    """The gateway asks of the number as it came in JSON, the engine of what 32 bits have made of it."""
    assert is_greedy(temperature) == is_greedy(float(np.float32(temperature))) == greedy
