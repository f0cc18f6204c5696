"""Which tokens a rank has the logits of, and what ranks find out together without sending these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine_svc.parallel.group import ParallelGroup

_WORTH = 2**18  # logits of a rank


@dataclass(frozen=True)
class VocabularyPart:
    """A rank's tokens of a vocabulary that the ranks of a group share, an equal range each; the last may have fewer."""

    size: int  # of the vocabulary
    group: ParallelGroup

    @property
    def share(self) -> int:
        """Tokens of a rank that is not the last."""
        return -(-self.size // self.group.world_size)

    @property
    def first(self) -> int:
        """The rank's first token."""
        return self.group.rank * self.share

    @property
    def count(self) -> int:
        """How many it has; less than 1 where there are more ranks than tokens."""
        return min(self.share, self.size - self.first)

    def is_worth(self, rows: int) -> bool:
        """Whether sending the logits of so many rows would take longer than finding tokens by parts does."""
        return rows * self.count >= _WORTH

    def whole(self, logits: torch.Tensor) -> torch.Tensor:
        """All ranks' logits: float32 [rows, vocabulary]."""
        if self.count < self.share:
            logits = F.pad(logits, (0, self.share - self.count))
        return self.group.all_gather_last(logits)[:, : self.size]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """[rows, values], of each rank as many → [rows, ranks, values]."""
        return self.group.all_gather_last(values).view(len(values), self.group.world_size, -1)

    def best(self, values: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The greatest value of all ranks, and its token: of the same ones the smallest. Two numbers go for each row.

        Args:
            values: [rows], of this rank's best tokens.
            token_ids: int64 [rows], which those are.

        Returns:
            float64 [rows], NaN where any rank has it, and int64 [rows].
        """
        pairs = torch.stack((values.double(), token_ids.double()), dim=-1)  # exact for both
        values, ids = self.gather(pairs).unbind(-1)
        greatest = values.amax(-1)
        return greatest, ids.masked_fill(values != greatest[:, None], torch.inf).amin(-1).nan_to_num_(0, 0).long()

    def at(self, logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """The logits of single tokens, whichever rank has them: float32 [count]. One number goes for each.

        Args:
            logits: [rows, tokens of this rank]
            rows, token_ids: int64 [count]
        """
        own = logits[rows, (token_ids - self.first).clamp(0, self.count - 1)]
        owners = token_ids // self.share
        return self.gather(own[:, None])[:, :, 0].gather(1, owners[:, None])[:, 0]
