"""Steps that are recorded once and replayed with a single call: CUDA graphs on a GPU (`graphs.py`), calls of the C++
kernels on a CPU (`native_calls.py`).

What is recorded reads buffers that stay where they are, into which each step copies its inputs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar, NamedTuple

import torch

from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.batch import FlatBatch
from engine_svc.runner.inputs import InputBuffers, Inputs, Shape

logger = logging.getLogger(__name__)

_MOST_SEEN = 4096  # shapes of steps that are remembered

Forward = Callable[[], torch.Tensor]
Replay = Callable[[], None]


class CannotRecord(Exception):
    """Steps run without being recorded; the text says why."""

    def __init__(self, text: str, level: int = logging.WARNING) -> None:
        """
        Args:
            level: at which this is logged.
        """
        super().__init__(text)
        self.level = level


class Capture(ABC):
    """A way to record forward passes."""

    runs: ClassVar[bool] = False  # to record a pass runs it, and leaves what a replay would

    @abstractmethod
    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """Records a pass: what replays it, and the tensor in which each replay leaves the hidden states.

        Raises:
            CannotRecord: this one, or any.
        """


class Shapes(ABC):
    """Which shape of a recording a step goes by."""

    most: ClassVar[int | None] = None  # of which recordings are kept, those used last; None: of all
    is_patient: ClassVar[bool] = False  # a shape is recorded when it comes for the second time

    @abstractmethod
    def of(self, batch: FlatBatch) -> Shape | None:
        """None: it is not replayed."""

    @abstractmethod
    def early(self) -> list[Shape]:
        """What is recorded before it is needed."""


class Recorded(NamedTuple):
    """A recorded pass."""

    replay: Replay
    hidden: torch.Tensor
    forward: Forward  # what was prepared for it must live as long as the recording, which reads it


class RecordedSteps:
    """One for each shape that came up so far, or lately."""

    def __init__(
        self,
        forward: Callable[[Inputs], Forward],
        capture: Capture,
        shapes: Shapes,
        buffers: InputBuffers,
        *,
        has_states: bool,
    ) -> None:
        """
        Args:
            forward: prepares a pass over such inputs.
            has_states: what a pass changes must be changed once a step.
        """
        self._forward, self._capture, self._shapes, self._buffers = forward, capture, shapes, buffers
        self._counts = capture.runs and not has_states  # the pass that is recorded is the step's own
        self._recorded: dict[Shape, Recorded] = {}  # in the order of their last use
        self._seen: set[Shape] = set()
        self._broken = False
        for shape in shapes.early():
            buffers.clear(shape)
            self._record(shape)

    def run(self, batch: FlatBatch, adapters: StepAdapters) -> torch.Tensor | None:
        """The hidden states of a batch; None for one that is not replayed."""
        shape = None if self._broken or not adapters.are_recordable(batch) else self._shapes.of(batch)
        if shape is None:
            return None
        if not adapters.is_used(batch):
            return self._run(batch, shape)
        with adapters.rows(batch, shape.tokens):
            return self._run(batch, shape._replace(has_adapters=True))

    def _run(self, batch: FlatBatch, shape: Shape) -> torch.Tensor | None:
        if not self._is_worth_it(shape):
            return None
        self._buffers.fill(batch, shape)
        found = self._replay(shape)
        return None if found is None else found.hidden[: len(batch.token_ids)]

    def _is_worth_it(self, shape: Shape) -> bool:
        """Whether it has come before, where that is asked."""
        if not self._shapes.is_patient or shape in self._recorded or shape in self._seen:
            return True
        if len(self._seen) == _MOST_SEEN:
            self._seen.clear()
        self._seen.add(shape)
        return False

    def _replay(self, shape: Shape) -> Recorded | None:
        if shape in self._recorded:
            found = self._recorded[shape] = self._recorded.pop(shape)  # it is the last one used
        else:
            recorded = self._record(shape)
            if recorded is None or self._counts:
                return recorded
            found = recorded
        found.replay()
        return found

    def _record(self, shape: Shape) -> Recorded | None:
        forward = self._forward(self._buffers.views(shape))
        try:
            with nullcontext() if self._counts else self._buffers.nobodys_states():
                recorded = Recorded(*self._capture(forward), forward)
        except CannotRecord as error:
            logger.log(error.level, "%s", error)
            self._broken = True
            self._recorded.clear()
            return None
        if len(self._recorded) == self._shapes.most:
            del self._recorded[next(iter(self._recorded))]
        self._recorded[shape] = recorded
        return recorded
