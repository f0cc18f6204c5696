"""The stages one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from engine_svc.plan import TokenMasks
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.stages.base import Recorder, SlotSequence, StageRows
from engine_svc.sampling.stages.custom_processors import CustomProcessors
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.registry import STAGES
from quire.logits_processor import LogitsProcessor


class StageChain:
    """All stages. A row pays for those alone whose parameters its sequence has."""

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        """
        Args:
            processors: the operator's.
        """
        self._on_cpu = device.type == "cpu"
        makers = [partial(make, classes=processors) if make is CustomProcessors else make for make in STAGES]
        # Each with the slots of the sequences that it has to see.
        self._stages = [(make(max_num_seqs, vocab_size, device), set[int]()) for make in makers]

    def reserve(self, num_tokens: int) -> None:
        """See LogitsStage.reserve."""
        for stage, _ in self._stages:
            stage.reserve(num_tokens)

    def remove(self, slot: int) -> None:
        """No stage has anything to do with the slot any more."""
        for _, members in self._stages:
            members.discard(slot)

    def add(self, slot: int, sequence: SlotSequence) -> None:
        """Gives a slot to a sequence; where a stage raises, to none. See LogitsStage.add."""
        self.remove(slot)
        for members in [members for stage, members in self._stages if stage.add(slot, sequence)]:
            members.add(slot)

    def takes_parts(self, slot: int) -> bool:
        """Whether a slot's logits can be changed where they are; see LogitsStage. On a GPU, where it takes the host's
        waiting for the device to tell whose tokens are whose, only if nothing is."""
        return all(stage.takes_parts and self._on_cpu for stage, members in self._stages if slot in members)

    def is_sequential(self, slot: int) -> bool:
        """Whether a slot's rows must come one at a time; see LogitsStage."""
        return any(stage.is_sequential and slot in members for stage, members in self._stages)

    def apply(self, edits: LogitEdits, sampled: SampledRows, masks: TokenMasks | None = None) -> list[Recorder]:
        """Changes the logits of a step.

        Args:
            sampled: all of its rows.
            masks: see StageRows.

        Returns:
            What takes the sampled tokens.
        """
        recorders = []
        for stage, members in self._stages:
            rows = [row for row, slot in enumerate(sampled.slots) if slot in members] if members else []
            if rows:
                recorders.append(stage.apply(edits, _of_stage(rows, sampled, masks)))
        return [recorder for recorder in recorders if recorder is not None]

    def apply_to_prompt(self, edits: LogitEdits, slot: int, num_tokens: list[int]) -> None:
        """Changes the logits of a slot's prompt as far as that does not go by the tokens before.

        Args:
            num_tokens: before each row's position.
        """
        rows = StageRows(list(range(len(num_tokens))), [slot] * len(num_tokens), num_tokens)
        for stage, members in self._stages:
            if slot in members and not stage.looks_back:
                stage.apply(edits, rows)


def _of_stage(rows: list[int], sampled: SampledRows, masks: TokenMasks | None) -> StageRows:
    slots, num_tokens = [sampled.slots[row] for row in rows], [sampled.num_tokens[row] for row in rows]
    offsets = [sampled.offsets[row] for row in rows] if sampled.offsets else ()
    return StageRows(rows, slots, num_tokens, masks, offsets)
