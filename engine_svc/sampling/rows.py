"""The rows of a step's logits, as passed to the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_DRAFT = -1


@dataclass(frozen=True)
class SampledRows:
    """Rows that tokens are sampled from: lists of the same length. Rows of a sequence are ordered by position."""

    slots: Sequence[int]
    num_tokens: Sequence[int]  # known tokens of the sequence before the row's; drafted ones count
    # The drafted token at the row's position, or NO_DRAFT; empty if the step has no drafts.
    drafts: Sequence[int] = ()
    offsets: Sequence[int] = ()  # position relative to the sequence's first sampled one; empty as `drafts`

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, rows: Sequence[int]) -> SampledRows:
        """A selection of the rows."""
        return SampledRows(
            [self.slots[row] for row in rows],
            [self.num_tokens[row] for row in rows],
            [self.drafts[row] for row in rows] if self.drafts else (),
            [self.offsets[row] for row in rows] if self.offsets else (),
        )
