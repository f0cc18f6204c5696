"""The rows of a step's logits, as the sampler is handed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_DRAFT = -1


@dataclass(frozen=True)
class SampledRows:
    """Rows that a token is sampled from: lists of the same length. Those of one sequence stand in the order of their
    positions."""

    slots: Sequence[int]
    num_tokens: Sequence[int]  # known of the row's sequence before its token; those drafted count as known
    # The token that is drafted at the row's position, or NO_DRAFT; empty where nothing is drafted in the step.
    drafts: Sequence[int] = ()
    offsets: Sequence[int] = ()  # of the position, from the first that its sequence samples in the step; as drafts

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, rows: Sequence[int]) -> SampledRows:
        """Some of them."""
        return SampledRows(
            [self.slots[row] for row in rows],
            [self.num_tokens[row] for row in rows],
            [self.drafts[row] for row in rows] if self.drafts else (),
            [self.offsets[row] for row in rows] if self.offsets else (),
        )
