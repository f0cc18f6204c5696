"""Runs the stages in order."""

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
    """All stages. A row only pays for those whose parameters its sequence sets."""

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        """
        Args:
            processors: logits processors of the operator.
        """
        self._on_cpu = device.type == "cpu"
        makers = [partial(make, classes=processors) if make is CustomProcessors else make for make in STAGES]
        # Each stage with the slots that it applies to.
        self._stages = [(make(max_num_seqs, vocab_size, device), set[int]()) for make in makers]

    def reserve(self, num_tokens: int) -> None:
        """See LogitsStage.reserve."""
        for stage, _ in self._stages:
            stage.reserve(num_tokens)

    def remove(self, slot: int) -> None:
        """Removes the slot from all stages."""
        for _, members in self._stages:
            members.discard(slot)

    def add(self, slot: int, sequence: SlotSequence) -> None:
        """Assigns a slot to a sequence; to none if a stage raises. See LogitsStage.add."""
        self.remove(slot)
        for members in [members for stage, members in self._stages if stage.add(slot, sequence)]:
            members.add(slot)

    def takes_parts(self, slot: int) -> bool:
        """Whether a slot's logits can be changed while ranks share them; see LogitsStage.

        On a GPU only if no stage applies, because separating the ranks' tokens makes the host wait for the device.
        """
        return all(stage.takes_parts and self._on_cpu for stage, members in self._stages if slot in members)

    def is_sequential(self, slot: int) -> bool:
        """Whether a slot's rows must be sampled one at a time; see LogitsStage."""
        return any(stage.is_sequential and slot in members for stage, members in self._stages)

    def apply(self, edits: LogitEdits, sampled: SampledRows, masks: TokenMasks | None = None) -> list[Recorder]:
        """Changes the logits of a step.

        Args:
            sampled: all rows of the step.
            masks: see StageRows.

        Returns:
            The recorders, which must be given the sampled tokens.
        """
        recorders = []
        for stage, members in self._stages:
            rows = [row for row, slot in enumerate(sampled.slots) if slot in members] if members else []
            if rows:
                recorders.append(stage.apply(edits, _of_stage(rows, sampled, masks)))
        return [recorder for recorder in recorders if recorder is not None]

    def apply_to_prompt(self, edits: LogitEdits, slot: int, num_tokens: list[int]) -> None:
        """Changes the logits of a slot's prompt, by the stages that do not depend on previous tokens.

        Args:
            num_tokens: number of tokens before each row's position.
        """
        rows = StageRows(list(range(len(num_tokens))), [slot] * len(num_tokens), num_tokens)
        for stage, members in self._stages:
            if slot in members and not stage.looks_back:
                stage.apply(edits, rows)


def _of_stage(rows: list[int], sampled: SampledRows, masks: TokenMasks | None) -> StageRows:
    slots, num_tokens = [sampled.slots[row] for row in rows], [sampled.num_tokens[row] for row in rows]
    offsets = [sampled.offsets[row] for row in rows] if sampled.offsets else ()
    return StageRows(rows, slots, num_tokens, masks, offsets)
