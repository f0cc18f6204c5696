"""A step that has been launched and may still run."""

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
from engine_svc.sampling.logprobs import ScoredPositions
from engine_svc.sampling.sampler import BrokenRows, SampleOutput
from engine_svc.sampling.verification import read_runs

_IDLE_SECONDS = 0.1


class StepTimer:
    """Moments of a step; on a GPU, of its stream."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self.began = time.perf_counter()
        self.mark()

    def mark(self) -> None:
        """This moment, or when the stream gets here."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def wait(self) -> None:
        """Until the stream is at the last mark."""
        if self._is_cuda:
            self._events[-1].synchronize()

    def milliseconds(self, mark: int) -> float:
        """From the start to a mark that is past."""
        if self._is_cuda:
            return float(self._events[0].elapsed_time(self._events[mark]))
        return (self._times[mark] - self._times[0]) * 1e3


class StepClock:
    """Whether steps run, for what is better done while none does."""

    def __init__(self) -> None:
        self._ended = -math.inf  # when the last one did, in seconds

    def begin(self) -> None:
        """A step begins."""
        self._ended = math.inf

    def end(self) -> None:
        """It has ended."""
        self._ended = time.monotonic()

    def is_idle(self) -> bool:
        """Whether none runs, nor has just ended, as between two of a sequence."""
        return time.monotonic() - self._ended > _IDLE_SECONDS


class Ended(NamedTuple):
    """What has come to its end beside the steps."""

    transfers: Sequence[EndedTransfer]
    adapters: Mapping[int, str]  # that have been read: see StepResult.read_adapters


@dataclass(frozen=True)
class BegunStep:
    """A step whose forward pass has been launched, and that has not sampled yet."""

    plan: StepPlan
    timer: StepTimer  # with a mark after the forward pass
    ended: Ended
    # What the plan computes, if anything.
    batch: FlatBatch | None = None
    hidden: torch.Tensor | None = None  # [tokens, hidden_size]; of a graph, only until it runs again
    failed: dict[int, str] = field(default_factory=dict)  # slot → why its sequence has failed already
    waited: float | None = None  # seconds, for other stages of a pipeline; None where there are none


class PendingStep:
    """What a step has sampled and scored, on its way to the host."""

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
            step: whose timer has a mark after the forward pass and one at the end; before it, one ahead of guessing.
            outputs: one for the rows that were sampled together; several where they could not be.
            prompt_scores: of prompt positions, by slot.
            broken: those that sample nothing and have overflowed; None where all sample.
            guesses: of the draft model, where there is one.
        """
        self._timer, self._failed, self._ended, self._waited = step.timer, step.failed, step.ended, step.waited
        self._outputs = outputs
        self._is_dual_batch = step.batch is not None and step.batch.halves is not None
        self._prompt_scores = prompt_scores
        self._broken = broken
        self._guesses = guesses

    def result(self) -> StepResult:
        """Waits for the device."""
        self._timer.wait()
        runs = read_runs(self._outputs)
        failed = self._failed | (self._broken.read() if self._broken else {}) | runs.failed
        sampled = {slot: run for slot, run in runs.token_ids.items() if slot not in failed}
        return StepResult(
            sampled_slots=list(sampled),
            sampled_token_ids=list(sampled.values()),
            logprobs=runs.logprobs,
            prompt_logprobs={
                slot: [position for part in parts for position in part.read()]
                for slot, parts in self._prompt_scores.items()
            },
            forward_milliseconds=self._timer.milliseconds(1) - (self._waited or 0.0) * 1e3,
            execute_milliseconds=self._timer.milliseconds(-1) - (self._waited or 0.0) * 1e3,
            failed_slots=failed,
            ended_transfers=[*self._ended.transfers],
            read_adapters={**self._ended.adapters},
            draft_token_ids={} if self._guesses is None else self._guesses.read(),
            draft_failure="" if self._guesses is None else self._guesses.failure,
            draft_milliseconds=0.0 if self._guesses is None else self._guessing_milliseconds(),
            is_dual_batch=self._is_dual_batch,
            stages=[] if self._waited is None else [self._stage_times(self._waited)],
        )

    def _stage_times(self, waited: float) -> StageTimes:
        began = self._timer.began
        return StageTimes(began, waited, began + self._timer.milliseconds(-1) / 1e3)

    def _guessing_milliseconds(self) -> float:
        return self._timer.milliseconds(-1) - self._timer.milliseconds(-2)
