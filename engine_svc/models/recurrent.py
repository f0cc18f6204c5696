"""What recurrent layers have in common: their interface, convolutions, and the rates at which states decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.rows import rows_parameter
from engine_svc.layers.split import Part
from engine_svc.models.attention import StepInputs
from engine_svc.parallel.group import ParallelGroup
from engine_svc.recurrence.base import MOST_TAPS, Convolution, LayerState, StateShape


class RecurrentLayer(torch.nn.Module):
    """Interface of a recurrent layer, which takes the place of attention."""

    state_shape: StateShape

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]; updates the states of the batch's sequences in place."""
        raise NotImplementedError


class ChannelConvolution(torch.nn.Module):
    """A checkpoint's conv1d, with one filter for each channel."""

    def __init__(
        self, parts: Sequence[Part] | Mapping[str, Part], taps: int, *, bias: bool, context: LayerContext,
        activates: bool = True,
    ) -> None:  # fmt: skip
        """
        Args:
            parts: this rank's channels; by name, if checkpoints may have them in separate tensors.

        Raises:
            ValueError: the filters are too long.
        """
        super().__init__()
        if taps > MOST_TAPS:
            raise ValueError(f"convolutions over {taps} tokens are not supported; expected {MOST_TAPS} at most")
        self._activates = activates
        self.channels = sum(part.count for part in (parts.values() if isinstance(parts, Mapping) else parts))
        self.weight = rows_parameter(parts, (taps, self.channels), context, lambda rows: rows.float()[:, 0].t())
        self.bias = rows_parameter(parts, (self.channels,), context) if bias else None

    def filters(self) -> Convolution:
        """The convolution as the operations of Recurrence take it."""
        return Convolution(self.weight, self.bias, self._activates)


def rates(logarithms: torch.Tensor) -> torch.Tensor:
    """Converts a checkpoint's A_log to rates, at which a state's logarithm changes per unit of time."""
    return -logarithms.float().exp()


def even_part(group: ParallelGroup, count: int, size: int, what: str) -> Part:
    """This rank's rows of `count` heads with `size` rows each, which are divided evenly among the ranks.

    Raises:
        ValueError: they cannot be divided evenly.
    """
    share = group.divide(count, what)
    return Part(group.rank * share * size, share * size, count * size)
