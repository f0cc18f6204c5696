"""Combining the results that several ranks report for a step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from engine_svc.executor.agreement import Agreement, TransferEnds, agree
from engine_svc.executor.messages import Step
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.plan import (
    AdapterChanges,
    BlockTransfer,
    EndedTransfer,
    ImageChanges,
    StepPlan,
    StepResult,
    Transfers,
)


def result(sampled: dict[int, int], failed: dict[int, str]) -> StepResult:
    return StepResult(list(sampled), [[token] for token in sampled.values()], {}, {}, 0.0, 0.0, failed)


def test_a_sequence_that_fails_on_any_rank_has_failed() -> None:
    first, second = result({0: 7, 1: 8, 2: 9}, {3: "first"}), result({0: 7, 2: 9}, {1: "second", 3: "later"})
    assert agree([first, second], ParallelLayout(2)) == result({0: 7, 2: 9}, {1: "second", 3: "first"})


def test_ranks_that_agree_are_not_copied() -> None:
    first = result({0: 7}, {1: "both"})
    assert agree([first, result({0: 7}, {1: "both"})], ParallelLayout(2)) is first


def test_a_transfer_has_ended_once_it_has_on_every_rank() -> None:
    """Reports the fewest blocks that any rank moved, also if a transfer is cancelled just as it ends on one of them."""
    ends = TransferEnds()

    def step(*ranks: dict[int, int]) -> dict[int, int]:
        results = [
            msgspec.structs.replace(result({}, {}), ended_transfers=[EndedTransfer(*end) for end in told.items()])
            for told in ranks
        ]
        return {end.key: end.num_blocks for end in ends.agree(results, results[0]).ended_transfers}

    assert step({}, {}) == {}
    assert step({1: 5, 2: 3}, {2: 4}) == {2: 3}
    assert step({}, {3: 7}) == {}
    assert step({3: 7}, {1: 5}) == {1: 5, 3: 7}
    assert step({4: 2}, {}) == {}
    assert step({4: 0}, {4: 0}) == {4: 0}
    assert step({}, {}) == {}


@pytest.mark.parametrize("field", ["read_adapters", "encoded_images"])
def test_work_beside_the_steps_has_ended_once_it_has_on_every_rank(field: str) -> None:
    agreement = Agreement(ParallelLayout(2))

    def step(*ranks: dict[int, str], dropped: Sequence[int] = ()) -> dict[int, str]:
        changes = {"read_adapters": AdapterChanges, "encoded_images": ImageChanges}[field](dropped=[*dropped])
        fields = {"read_adapters": "adapters", "encoded_images": "images"}
        agreement.begin(StepPlan(0, [], [], **{fields[field]: changes}))
        found = agreement.of([msgspec.structs.replace(result({}, {}), **{field: told}) for told in ranks])
        return getattr(found, field)

    assert step({}, {}) == {}
    assert step({1: "", 2: ""}, {2: "cut off"}) == {2: "cut off"}
    assert step({}, {1: ""}) == {1: ""}
    assert step({3: ""}, {}) == {}
    assert step({}, {3: ""}, dropped=[3]) == {}


def test_transfers_reach_a_rank_as_they_are() -> None:
    transfers = Transfers([BlockTransfer([1, 2], [7, 0])], [BlockTransfer([3], [b"hash"], 9)], [4])
    plan = StepPlan(0, [], [], transfers)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Step(plan)), type=Step).plan == plan
