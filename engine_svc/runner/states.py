"""The states that recurrent layers keep for sequences, by the sequences' slots in the runner.

A slot is not cleared between sequences: a sequence of which nothing is computed ignores what its slot holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from engine_svc.memory import zeros_when_touched
from engine_svc.recurrence.base import LayerState, StateForm, StateMetadata


class StateCache:
    """The states of a rank's recurrent layers.

    Attributes:
        nobodys_slot: an extra slot behind those of sequences, used by the padding rows of a CUDA graph.
    """

    def __init__(self, form: StateForm, num_slots: int, device: torch.device, num_snapshots: int = 0) -> None:
        """
        Args:
            num_slots: number of sequences that have states; 0 means that all use nobody's slot, as steps may whose
                results do not matter.
            num_snapshots: places for saved states, in slots behind nobody's.
        """

        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            size = (num_slots + 1 + num_snapshots, *shape)
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

    def save(self, places: Mapping[int, int]) -> None:
        """Copies the states of sequences, by slot, to places for saved states."""
        for slot, place in places.items():
            self._copy(slot, self.nobodys_slot + 1 + place)

    def restore(self, place: int, slot: int) -> None:
        """Copies saved states to a sequence's slot."""
        self._copy(self.nobodys_slot + 1 + place, slot)

    def _copy(self, source: int, target: int) -> None:
        kept = [tensor for layer in self._layers.values() for tensor in layer if tensor.numel()]
        if kept:  # otherwise none of the rank's layers is recurrent
            torch._foreach_copy_([tensor[target] for tensor in kept], [tensor[source] for tensor in kept])

    def layers(self, sequences: StateMetadata) -> dict[int, LayerState]:
        """The state of each recurrent layer, for a step of these sequences."""
        if not self.nobodys_slot:
            sequences = replace(sequences, slots=torch.zeros_like(sequences.slots))
        return {layer: LayerState(*kept, sequences) for layer, kept in self._layers.items()}
