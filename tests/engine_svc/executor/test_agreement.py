"""What several ranks say of a step, as one result."""

from __future__ import annotations

from engine_svc.executor.multiproc import agree
from engine_svc.plan import StepResult


def result(sampled: dict[int, int], failed: dict[int, str]) -> StepResult:
    return StepResult(list(sampled), [[token] for token in sampled.values()], {}, {}, 0.0, 0.0, failed)


def test_a_sequence_that_fails_on_any_rank_has_failed() -> None:
    first, second = result({0: 7, 1: 8, 2: 9}, {3: "first"}), result({0: 7, 2: 9}, {1: "second", 3: "later"})
    assert agree([first, second]) == result({0: 7, 2: 9}, {1: "second", 3: "first"})


def test_ranks_that_agree_are_not_copied() -> None:
    first = result({0: 7}, {1: "both"})
    assert agree([first, result({0: 7}, {1: "both"})]) is first
