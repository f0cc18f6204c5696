"""A step that has been launched and may still be running."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine_svc.plan import EndedTransfer, StageTimes, StepPlan, StepResult
from engine_svc.runner.batch import FlatBatch
from engine_svc.runner.drafting import Guesses
from engine_svc.runner.routed_experts import RoutedRows
from engine_svc.sampling.logprobs import ScoredPositions
from engine_svc.sampling.sampler import BrokenRows, SampleOutput
from engine_svc.sampling.verification import read_runs

_IDLE_SECONDS = 0.1


class StepTimer:
    """Times of a step; on a GPU, of its stream."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self.began = time.perf_counter()
        self.mark()

    def mark(self) -> None:
        """Marks the present time, or on a GPU, the time when the stream gets to this point."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def wait(self) -> None:
        """Waits until the stream has reached the last mark."""
        if self._is_cuda:
            self._events[-1].synchronize()

    def milliseconds(self, mark: int) -> float:
        """Time from the start to a mark that has been reached."""
        if self._is_cuda:
            return float(self._events[0].elapsed_time(self._events[mark]))
        return (self._times[mark] - self._times[0]) * 1e3


class StepClock:
    """Knows whether steps are running, for background work that is better done while none is."""

    def __init__(self) -> None:
        self._ended = -math.inf  # when the last step ended, in seconds

    def begin(self) -> None:
        """Notes that a step begins."""
        self._ended = math.inf

    def end(self) -> None:
        """Notes that the step has ended."""
        self._ended = time.monotonic()

    def is_idle(self) -> bool:
        """Whether no step is running or has just ended, as happens between two steps of a sequence."""
        return time.monotonic() - self._ended > _IDLE_SECONDS


class Ended(NamedTuple):
    """Background work that has ended since the last step."""

    transfers: Sequence[EndedTransfer]
    adapters: Mapping[int, str]  # adapters that have been read: see StepResult.read_adapters
    images: Mapping[int, str]  # see StepResult.encoded_images


@dataclass(frozen=True)
class BegunStep:
    """A step whose forward pass has been launched and that has not sampled yet."""

    plan: StepPlan
    timer: StepTimer  # with a mark after the forward pass
    ended: Ended
    # The batch and its hidden states; None if the plan computes nothing.
    batch: FlatBatch | None = None
    hidden: torch.Tensor | None = None  # [output rows, hidden_size]; from a graph, valid only until its next replay
    failed: dict[int, str] = field(default_factory=dict)  # slot → why its sequence has failed already
    routed: RoutedRows | None = None  # None if they are not returned
    waited: float | None = None  # seconds spent waiting for other pipeline stages; None if there are none


class PendingStep:
    """The samples and scores of a step, on their way to the host."""

    def __init__(
        self,
        step: BegunStep,
        outputs: Sequence[SampleOutput] = (),
        prompt_scores: Mapping[int, Sequence[ScoredPositions]] = {},
        broken: BrokenRows | None = None,
        guesses: Guesses | None = None,
    ) -> None:
        """
        Args:
            step: its timer has a mark after the forward pass and one at the end; with drafting, another before that.
            outputs: one for each set of rows that were sampled together.
            prompt_scores: log-probabilities at prompt positions, by slot.
            broken: which of the sequences that sample nothing have overflowed; None if all sample.
            guesses: the draft tokens, if there is a draft model.
        """
        self._timer, self._failed, self._ended, self._waited = step.timer, step.failed, step.ended, step.waited
        self._outputs, self._routed = outputs, step.routed
        self._is_dual_batch = step.batch is not None and step.batch.halves is not None
        self._prompt_scores = prompt_scores
        self._broken = broken
        self._guesses = guesses

    def result(self) -> StepResult:
        """Waits for the device and returns the step's result."""
        self._timer.wait()
        runs = read_runs(self._outputs)
        failed = self._failed | (self._broken.read() if self._broken else {}) | runs.failed
        sampled = {slot: run for slot, run in runs.token_ids.items() if slot not in failed}
        return StepResult(
            sampled_slots=list(sampled),
            sampled_token_ids=list(sampled.values()),
            logprobs=runs.logprobs,
            sampling_masks=runs.sampling_masks,
            prompt_logprobs={
                slot: [position for part in parts for position in part.read()]
                for slot, parts in self._prompt_scores.items()
            },
            forward_milliseconds=self._timer.milliseconds(1) - (self._waited or 0.0) * 1e3,
            execute_milliseconds=self._timer.milliseconds(-1) - (self._waited or 0.0) * 1e3,
            failed_slots=failed,
            ended_transfers=[*self._ended.transfers],
            read_adapters={**self._ended.adapters},
            encoded_images={**self._ended.images},
            draft_token_ids={} if self._guesses is None else self._guesses.read(),
            draft_failure="" if self._guesses is None else self._guesses.failure,
            draft_milliseconds=0.0 if self._guesses is None else self._guessing_milliseconds(),
            routed_experts={} if self._routed is None else self._routed.read(),
            is_dual_batch=self._is_dual_batch,
            stages=[] if self._waited is None else [self._stage_times(self._waited)],
        )

    def _stage_times(self, waited: float) -> StageTimes:
        began = self._timer.began
        return StageTimes(began, waited, began + self._timer.milliseconds(-1) / 1e3)

    def _guessing_milliseconds(self) -> float:
        return self._timer.milliseconds(-1) - self._timer.milliseconds(-2)
