"""The states that recurrent layers keep of sequences, by the slots that the sequences have in the runner.

A sequence takes over whatever is in its slot when nothing of it is computed: what was there counts as nothing then.
"""

from __future__ import annotations

import torch

from engine_svc.memory import zeros_when_touched
from engine_svc.recurrence.base import LayerState, StateForm, StateMetadata


class StateCache:
    """One for each rank.

    Attributes:
        nobodys_slot: one more than there are sequences, of what fills up a CUDA graph.
    """

    def __init__(self, form: StateForm, num_slots: int, device: torch.device) -> None:
        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            size = (num_slots + 1, *shape)
            return zeros_when_touched(size, dtype) if device.type == "cpu" else torch.zeros(
                size, dtype=dtype, device=device
            )  # fmt: skip

        self.nobodys_slot = num_slots
        self._layers = {
            layer: (
                allocate(shape.convolution, form.convolution_dtype), allocate(shape.recurrent, form.recurrent_dtype),
            )
            for layer, shape in form.shapes.items()
        }  # fmt: skip

    def layers(self, sequences: StateMetadata) -> dict[int, LayerState]:
        """Of each recurrent layer, for a step of these sequences."""
        return {layer: LayerState(*kept, sequences) for layer, kept in self._layers.items()}
