"""What the ranks' results of one step come to."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from engine_svc.parallel.layout import Coordinates, ParallelLayout
from engine_svc.plan import EndedTransfer, KvCacheSpec, StepResult


class Agreement:
    """Over the steps of one worker, in order.

    All ranks of a model's last layers sample from the same logits, so they agree without being told; the first of them
    answers for all. A sequence that fails on one rank, even if on no other, has failed.
    """

    def __init__(self, layout: ParallelLayout = ParallelLayout()) -> None:
        self._layout = layout
        self._ends = TransferEnds()
        self._reads = AdapterReads()

    def begin(self, dropped_adapters: Iterable[int]) -> None:
        """A step is submitted that drops these adapters."""
        self._reads.forget(dropped_adapters)

    def of(self, results: list[StepResult]) -> StepResult:
        """The joint result of a step, of which each rank has brought its own."""
        return self._reads.agree(results, self._ends.agree(results, agree(results, self._layout)))


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


def joint_spec(specs: list[KvCacheSpec]) -> KvCacheSpec:
    """What all ranks can keep: as many blocks as the one with the least room for them, whatever each stores in one."""

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
    """The result of the last stage's first rank, without the sequences that failed on any rank; with the times of all
    stages."""
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
