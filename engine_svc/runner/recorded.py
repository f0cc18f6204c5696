"""Steps that are recorded once for each shape and replayed with a single call; `graphs.py` does the recording.

A recording reads a buffer at a fixed address, into which each step copies its inputs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch

from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.batch import FlatBatch, Inputs
from engine_svc.runner.graph_inputs import GraphInputs
from engine_svc.runner.inputs import Shape

logger = logging.getLogger(__name__)

Forward = Callable[[], torch.Tensor]
Replay = Callable[[], None]


class CannotRecord(Exception):
    """Recording failed, so steps must run without it; the text says why."""


class Capture(ABC):
    """A way to record forward passes."""

    @abstractmethod
    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """Records a pass.

        Returns:
            The function that replays it, and the tensor in which each replay leaves the hidden states.

        Raises:
            CannotRecord: this pass, or any pass, cannot be recorded.
        """


class Shapes(ABC):
    """Chooses the recording shape for each step."""

    @abstractmethod
    def of(self, batch: FlatBatch) -> Shape | None:
        """The shape whose recording serves the batch; None means that the batch is not replayed."""

    @abstractmethod
    def all(self) -> list[Shape]:
        """All shapes that are recorded."""


class Recorded(NamedTuple):
    """A recorded pass."""

    replay: Replay
    hidden: torch.Tensor
    forward: Forward  # holds everything prepared for the pass, which the recording reads: must live as long


class RecordedSteps:
    """Recordings of all shapes; none at all if one of the shapes cannot be recorded."""

    def __init__(
        self,
        forward: Callable[[Inputs], Forward],
        capture: Capture,
        shapes: Shapes,
        inputs: GraphInputs,
        adapters: StepAdapters,
    ) -> None:
        """
        Args:
            forward: prepares a pass over inputs.
            adapters: the rank's adapters.
        """
        self._forward, self._capture, self._shapes, self._inputs = forward, capture, shapes, inputs
        self._adapters = adapters
        self._recorded: dict[Shape, Recorded] = {}
        try:
            for shape in shapes.all():
                inputs.clear(shape)
                with adapters.nobodys_rows(shape.tokens) if shape.has_adapters else nullcontext():
                    self._recorded[shape] = self._record(shape)
        except CannotRecord as error:
            logger.warning("%s", error)
            self._recorded.clear()

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """Replays a batch and returns the hidden states of all its rows; None if the batch cannot be replayed."""
        adapters = self._adapters
        if not self._recorded or batch.embedded is not None or not adapters.are_recordable(batch):
            return None
        shape = self._shapes.of(batch)
        if shape is None:
            return None
        shape = shape._replace(has_adapters=adapters.is_used(batch))
        found = self._recorded.get(shape)
        if found is None or not self._inputs.fill(batch, shape):
            return None
        with adapters.rows(batch, shape.tokens) if shape.has_adapters else nullcontext():
            found.replay()
        return found.hidden[: batch.num_tokens]

    def _record(self, shape: Shape) -> Recorded:
        forward = self._forward(self._inputs.views(shape))

        def whole() -> torch.Tensor:
            self._inputs.unpack(shape)
            return forward()

        return Recorded(*self._capture(whole), whole)
