"""What the ranks' results of one step come to."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine_svc.plan import EndedTransfer, StepResult


class Agreement:
    """Over the steps of one worker, in order.

    All ranks sample from the same logits, so they agree without being told; rank 0 answers for all. A sequence that
    fails on one of them, even if on no other, has failed.
    """

    def __init__(self) -> None:
        self._ends = TransferEnds()
        self._reads = AdapterReads()

    def begin(self, dropped_adapters: Iterable[int]) -> None:
        """A step is submitted that drops these adapters."""
        self._reads.forget(dropped_adapters)

    def of(self, results: list[StepResult]) -> StepResult:
        """The joint result of a step, of which each rank has brought its own."""
        return self._reads.agree(results, self._ends.agree(results, agree(results)))


class TransferEnds:
    """Each rank moves its part of a block, and is done with it in a step of its own: a transfer ends with the last."""

    def __init__(self) -> None:
        self._reported: dict[int, dict[int, int]] = {}  # by key and rank, how many blocks were moved

    def agree(self, results: list[StepResult], joint: StepResult) -> StepResult:
        """The joint result with the transfers that have ended on all ranks; the blocks that all of them have moved."""
        if not any(result.ended_transfers for result in results):
            return joint
        for rank, result in enumerate(results):
            for end in result.ended_transfers:
                self._reported.setdefault(end.key, {})[rank] = end.num_blocks
        complete = [key for key, reported in self._reported.items() if len(reported) == len(results)]
        ended = [EndedTransfer(key, min(self._reported.pop(key).values())) for key in complete]
        return msgspec.structs.replace(joint, ended_transfers=ended)


class AdapterReads:
    """Each rank reads its part of an adapter: it is read with the last, and not where one of them cannot read it."""

    def __init__(self) -> None:
        self._reported: dict[int, dict[int, str]] = {}  # by key and rank, why it could not be read, or nothing

    def forget(self, keys: Iterable[int]) -> None:
        """Of adapters that are dropped, nothing is reported any more."""
        for key in keys:
            self._reported.pop(key, None)

    def agree(self, results: list[StepResult], joint: StepResult) -> StepResult:
        """The joint result with the adapters that all ranks have read by now."""
        for rank, result in enumerate(results):
            for key, why in result.read_adapters.items():
                self._reported.setdefault(key, {})[rank] = why
        complete = [key for key, reported in self._reported.items() if len(reported) == len(results)]
        read = {key: max(self._reported.pop(key).values()) for key in complete}
        return joint if read == joint.read_adapters else msgspec.structs.replace(joint, read_adapters=read)


def agree(results: list[StepResult]) -> StepResult:
    """Rank 0's result, without the sequences that failed on any rank."""
    first = results[0]
    failed = {slot: message for result in reversed(results) for slot, message in result.failed_slots.items()}
    if failed.keys() == first.failed_slots.keys():
        return first
    sampled = zip(first.sampled_slots, first.sampled_token_ids, strict=True)
    kept = {slot: run for slot, run in sampled if slot not in failed}
    return msgspec.structs.replace(
        first, sampled_slots=list(kept), sampled_token_ids=list(kept.values()), failed_slots=failed
    )
