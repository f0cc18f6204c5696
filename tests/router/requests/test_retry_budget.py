"""How many requests may be on a second attempt at the same time."""

from __future__ import annotations

import pytest

from router.requests.retry_budget import RetryBudget


@pytest.mark.parametrize(("active", "allowed"), [(0, 3), (10, 3), (15, 3), (16, 4), (100, 20)])
def test_the_retry_budget_is_a_fifth_of_the_active_and_three_at_least(active: int, allowed: int) -> None:
    budget = RetryBudget()
    assert [budget.take(active) for _ in range(allowed + 1)] == [True] * allowed + [False]
    budget.give_back()
    assert budget.take(active)
