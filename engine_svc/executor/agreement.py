"""Combines the ranks' results of a step into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from engine_svc.parallel.layout import Coordinates, ParallelLayout
from engine_svc.plan import EndedTransfer, KvCacheSpec, StepPlan, StepResult


class Agreement:
    """Combines the results of one worker's steps, in order.

    All ranks of the last stage sample from the same logits, so they agree without communication, and the first of them
    answers for all. A sequence that fails on any rank has failed.
    """

    def __init__(self, layout: ParallelLayout = ParallelLayout()) -> None:
        self._layout = layout
        self._ends = TransferEnds()
        self._adapters, self._images = Reports(), Reports()

    def begin(self, plan: StepPlan) -> None:
        """Announces a submitted step, which may drop adapters and images."""
        self._adapters.forget(plan.adapters.dropped)
        self._images.forget(plan.images.dropped)

    def of(self, results: list[StepResult]) -> StepResult:
        """The joint result of a step, from one result per rank."""
        joint = self._ends.agree(results, agree(results, self._layout))
        adapters = self._adapters.agree([result.read_adapters for result in results])
        images = self._images.agree([result.encoded_images for result in results])
        if (adapters, images) == (joint.read_adapters, joint.encoded_images):
            return joint
        return msgspec.structs.replace(joint, read_adapters=adapters, encoded_images=images)


class TransferEnds:
    """Combines ended transfers: ranks may report them in different steps, and a transfer ends with the last one."""

    def __init__(self) -> None:
        self._reported: dict[int, dict[int, int]] = {}  # key → rank → number of blocks moved

    def agree(self, results: list[StepResult], joint: StepResult) -> StepResult:
        """Adds the transfers that have ended on all ranks, with the number of blocks that all of them have moved."""
        if not any(result.ended_transfers for result in results):
            return joint
        for rank, result in enumerate(results):
            for end in result.ended_transfers:
                self._reported.setdefault(end.key, {})[rank] = end.num_blocks
        complete = [key for key, reported in self._reported.items() if len(reported) == len(results)]
        ended = [EndedTransfer(key, min(self._reported.pop(key).values())) for key in complete]
        return msgspec.structs.replace(joint, ended_transfers=ended)


class Reports:
    """Combines reports on work beside the steps, such as reading adapters: it has ended once it has on the last rank,
    and failed if it has on any rank."""

    def __init__(self) -> None:
        self._reported: dict[int, dict[int, str]] = {}  # key → rank → error, empty on success

    def forget(self, keys: Iterable[int]) -> None:
        """Forgets reports about what is dropped."""
        for key in keys:
            self._reported.pop(key, None)

    def agree(self, told: Sequence[Mapping[int, str]]) -> dict[int, str]:
        """What has ended on all ranks by now.

        Args:
            told: each rank's reports of a step, key → error; empty on success, as in the result.
        """
        for rank, reports in enumerate(told):
            for key, why in reports.items():
                self._reported.setdefault(key, {})[rank] = why
        complete = [key for key, reported in self._reported.items() if len(reported) == len(told)]
        return {key: max(self._reported.pop(key).values()) for key in complete}


def joint_spec(specs: list[KvCacheSpec]) -> KvCacheSpec:
    """The spec for all ranks: with as many blocks as fit on the rank with the least room, whatever their size there."""

    def blocks(spec: KvCacheSpec) -> float:
        free = spec.available_bytes - spec.state_bytes
        return free / spec.bytes_per_block if spec.bytes_per_block else math.copysign(math.inf, free)

    scarce = min(specs, key=blocks)
    state_bytes = max(spec.state_bytes for spec in specs)
    return msgspec.structs.replace(
        scarce,
        available_bytes=scarce.available_bytes + state_bytes - scarce.state_bytes,
        state_bytes=state_bytes,
        draft_bytes_per_block=max(spec.draft_bytes_per_block for spec in specs),  # a draft may run on some ranks only
        adapter_modules={name: shape for spec in specs for name, shape in spec.adapter_modules.items()},
    )


def agree(results: list[StepResult], layout: ParallelLayout) -> StepResult:
    """The result of the last stage's first rank, without sequences that failed on any rank; adds all stages' times."""
    first = results[layout.rank(Coordinates(0, layout.pipeline - 1, 0))]
    if layout.pipeline > 1:
        first = _of_all_stages(first, results[:: layout.tensor])
    failed = {slot: message for result in reversed(results) for slot, message in result.failed_slots.items()}
    if failed.keys() == first.failed_slots.keys():
        return first
    sampled = zip(first.sampled_slots, first.sampled_token_ids, strict=True)
    kept = {slot: run for slot, run in sampled if slot not in failed}
    return msgspec.structs.replace(
        first, sampled_slots=list(kept), sampled_token_ids=list(kept.values()), failed_slots=failed
    )


def _of_all_stages(last: StepResult, stages: list[StepResult]) -> StepResult:
    return msgspec.structs.replace(
        last,
        forward_milliseconds=sum(stage.forward_milliseconds for stage in stages),
        execute_milliseconds=sum(stage.execute_milliseconds for stage in stages),
        stages=[times for stage in stages for times in stage.stages],
    )
