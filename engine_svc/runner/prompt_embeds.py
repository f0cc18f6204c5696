"""Prompts that were given as embeddings, kept by slot until they are computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.plan import NewSequence, ScheduledSequence
from engine_svc.transfer import to_device


class PromptEmbeddings:
    """Prompt embeddings, kept on the host in the model's dtype; the rows that a step needs are moved to the device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}  # slot → first position, [positions, hidden_size]

    def add(self, sequence: NewSequence) -> None:
        """Gives a slot to a sequence, and keeps its prompt embeddings if it has any."""
        self._kept.pop(sequence.slot, None)
        embeds = sequence.prompt_embeds
        if embeds is not None and embeds.data:
            values = torch.frombuffer(bytearray(embeds.data), dtype=getattr(torch, embeds.dtype))
            values = values.view(-1, embeds.hidden_size).to(self._dtype)
            self._kept[sequence.slot] = sequence.num_computed_tokens, values

    def rows(self, scheduled: Sequence[ScheduledSequence]) -> EmbeddedRows | None:
        """The embedded rows of a step's batch; None if there are none. Drops embeddings that are fully computed."""
        if not self._kept:
            return None
        rows: list[int] = []
        values: list[torch.Tensor] = []
        start = 0
        for sequence in scheduled:
            if sequence.slot in self._kept and (found := self._take(sequence)) is not None:
                rows += range(start, start + len(found))
                values.append(found)
            start += sequence.num_new_tokens
        if not values:
            return None
        return EmbeddedRows(to_device(rows, self._device), to_device(torch.cat(values), self._device))

    def _take(self, sequence: ScheduledSequence) -> torch.Tensor | None:
        first, kept = self._kept[sequence.slot]
        done = sequence.num_computed_tokens - first
        if done >= len(kept):
            del self._kept[sequence.slot]
            return None
        return kept[done : done + sequence.num_new_tokens]
