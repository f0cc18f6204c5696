"""The states that recurrent layers keep for sequences: which slots they are in, and the slots' contents.

A sequence has one slot, the same as in the runner, or one for each token that a step may verify: how many of the
drafted tokens are right is not known before the state after each has been computed. A slot is not cleared between
sequences: a sequence of which nothing is computed ignores what its slot holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.memory import zeros_when_touched
from engine_svc.plan import ScheduledSequence
from engine_svc.recurrence.base import LayerState, StateForm, StateMetadata

Slots = npt.NDArray[np.int64]


class StateSlots(NamedTuple):
    """Where the states of a step's sequences are, and where they go."""

    sources: Slots  # [sequences]
    targets: Slots  # [tokens], see StateMetadata; none if each sequence has one slot


class SlotsOfSequences:
    """Which of its slots has a sequence's state."""

    def __init__(self, max_num_seqs: int, each: int) -> None:
        """
        Args:
            each: slots of a sequence: the most tokens that a step verifies, the known one included.
        """
        self._each = each
        self._place = np.zeros(max_num_seqs, np.int64)  # of a sequence's slots, the one after its last known token
        # Tokens computed when the state in a sequence's first slot had been, if its last step had drafts; else -1.
        self._first = np.full(max_num_seqs, -1)

    def begin(self, slot: int) -> None:
        """Starts a sequence in a slot of the runner; its state, if it has one, is in the first of its own."""
        self._place[slot], self._first[slot] = 0, -1

    def known(self, slot: int) -> int:
        """The slot of the state after the last token of a sequence's last step, without drafted ones."""
        return slot * self._each + int(self._place[slot])

    def step(self, slots: Slots, computed: Slots, new: Slots, scheduled: Sequence[ScheduledSequence]) -> StateSlots:
        """Assigns slots for a step; called once for each. How many tokens are computed tells which drafts were right.

        Args:
            slots: the runner's slots of the step's sequences.
            computed, new: their numbers of computed tokens before the step, and of those it computes.
            scheduled: the sequences, with the drafted ones of these tokens.
        """
        if self._each == 1:
            return StateSlots(slots, slots[:0])
        drafts = np.array([len(sequence.draft_token_ids) for sequence in scheduled])
        begins, first = slots * self._each, self._first[slots]
        places = np.where(first >= 0, computed - first, self._place[slots])
        targets, ends = np.full(new.sum(), -1), new.cumsum()
        after = np.where(drafts > 0, 0, places)  # the last known token, without drafted ones
        targets[ends - 1 - drafts] = begins + after
        for draft in range(1, int(drafts.max()) + 1):
            has = drafts >= draft
            targets[(ends - 1 - drafts)[has] + draft] = begins[has] + draft
        self._place[slots], self._first[slots] = after, np.where(drafts > 0, computed + new - drafts, -1)
        return StateSlots(begins + places, targets)


class StateCache:
    """The states of a rank's recurrent layers.

    Attributes:
        nobodys_slot: an extra slot behind those of sequences, used by the padding rows of a CUDA graph.
    """

    def __init__(
        self, form: StateForm, num_slots: int, device: torch.device, num_snapshots: int = 0, each: int = 1
    ) -> None:
        """
        Args:
            num_slots: number of slots of all sequences; 0 means that all use nobody's slot, as steps may whose results
                do not matter.
            each: slots of a sequence.
            num_snapshots: places for saved states, in slots behind nobody's.
        """

        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            size = (num_slots + 1 + num_snapshots, *shape)
            return zeros_when_touched(size, dtype) if device.type == "cpu" else torch.zeros(
                size, dtype=dtype, device=device
            )  # fmt: skip

        self.nobodys_slot, self._each = num_slots, each
        self._layers = {
            layer: (
                allocate(shape.convolution, form.convolution_dtype), allocate(shape.recurrent, form.recurrent_dtype),
            )
            for layer, shape in form.shapes.items()
        }  # fmt: skip
        self._tensors = [tensor for layer in self._layers.values() for tensor in layer if tensor.numel()]

    @property
    def saved(self) -> list[torch.Tensor]:
        """The places for saved states, as views [places, ...] of the tensors of all layers."""
        return [tensor[self.nobodys_slot + 1 :] for tensor in self._tensors]

    def save(self, places: Mapping[int, int]) -> None:
        """Copies states, by their slots, to places for saved states."""
        for slot, place in places.items():
            self._copy(slot, self.nobodys_slot + 1 + place)

    def restore(self, place: int, slot: int) -> None:
        """Copies saved states to the first slot of the sequence in a slot of the runner."""
        self._copy(self.nobodys_slot + 1 + place, slot * self._each)

    def _copy(self, source: int, target: int) -> None:
        if self._tensors:  # otherwise none of the rank's layers is recurrent
            torch._foreach_copy_([kept[target] for kept in self._tensors], [kept[source] for kept in self._tensors])

    def layers(self, sequences: StateMetadata) -> dict[int, LayerState]:
        """The state of each recurrent layer, for a step of these sequences."""
        if not self.nobodys_slot:
            targets = None if sequences.targets is None else sequences.targets.clamp(max=0)
            sequences = replace(sequences, slots=torch.zeros_like(sequences.slots), targets=targets)
        return {layer: LayerState(*kept, sequences) for layer, kept in self._layers.items()}
