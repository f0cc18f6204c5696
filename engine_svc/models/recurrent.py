"""What the recurrent layers share: convolutions, the rates at which states fade, how they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.rows import rows_parameter
from engine_svc.layers.split import Part
from engine_svc.models.attention import StepInputs
from engine_svc.parallel.group import ParallelGroup
from engine_svc.recurrence.base import Convolution, LayerState, StateShape


class RecurrentLayer(torch.nn.Module):
    """Stands where others attend."""

    state_shape: StateShape

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → the same; changes the states of the sequences that compute."""
        raise NotImplementedError


class ChannelConvolution(torch.nn.Module):
    """A checkpoint's conv1d, one filter for each channel."""

    def __init__(
        self, parts: Sequence[Part] | Mapping[str, Part], taps: int, *, bias: bool, context: LayerContext,
        activates: bool = True,
    ) -> None:  # fmt: skip
        """
        Args:
            parts: by name, where checkpoints may have each by itself.
        """
        super().__init__()
        self._activates = activates
        self.channels = sum(part.count for part in (parts.values() if isinstance(parts, Mapping) else parts))
        self.weight = rows_parameter(parts, (taps, self.channels), context, lambda rows: rows.float()[:, 0].t())
        self.bias = rows_parameter(parts, (self.channels,), context) if bias else None

    def filters(self) -> Convolution:
        """As the operations take it."""
        return Convolution(self.weight, self.bias, self._activates)


def rates(logarithms: torch.Tensor) -> torch.Tensor:
    """What checkpoints call A_log, as the rate of which a state's logarithm changes in a unit of time."""
    return -logarithms.float().exp()


def even_part(group: ParallelGroup, count: int, size: int, what: str) -> Part:
    """Rows of `count` heads, of so many rows each, of which every rank has as many.

    Raises:
        ValueError: they cannot be divided.
    """
    share = group.divide(count, what)
    return Part(group.rank * share * size, share * size, count * size)
