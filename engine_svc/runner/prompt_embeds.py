"""Prompts that were given as embeddings, kept by slot until they are computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine_svc.plan import NewSequence, ScheduledSequence
from engine_svc.runner.given_rows import GivenRows


class PromptEmbeddings:
    """Prompt embeddings, kept on the host in the model's dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}  # slot → first position, [positions, hidden_size]

    def add(self, sequence: NewSequence) -> None:
        """Gives a slot to a sequence, and keeps its prompt embeddings if it has any."""
        self._kept.pop(sequence.slot, None)
        embeds = sequence.prompt_embeds
        if embeds is not None and embeds.data:
            values = torch.frombuffer(bytearray(embeds.data), dtype=getattr(torch, embeds.dtype))
            values = values.view(-1, embeds.hidden_size).to(self._dtype)
            self._kept[sequence.slot] = sequence.num_computed_tokens, values

    def rows(self, scheduled: Sequence[ScheduledSequence]) -> list[GivenRows]:
        """The rows of a step's batch that have embeddings. Drops embeddings that are fully computed."""
        found: list[GivenRows] = []
        start = 0
        for sequence in scheduled if self._kept else ():
            if sequence.slot in self._kept and (values := self._take(sequence)) is not None:
                found.append(GivenRows(np.arange(start, start + len(values)), values))
            start += sequence.num_new_tokens
        return found

    def _take(self, sequence: ScheduledSequence) -> torch.Tensor | None:
        first, kept = self._kept[sequence.slot]
        done = sequence.num_computed_tokens - first
        if done >= len(kept):
            del self._kept[sequence.slot]
            return None
        return kept[done : done + sequence.num_new_tokens]
