"""Which tokens a rank has the logits of, and how ranks find the best of all without sending these."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.parallel.group import ParallelGroup

_WORTH = 2**18  # logits of a rank


@dataclass(frozen=True)
class VocabularyPart:
    """So many tokens from `first` on, of a vocabulary that the ranks of a group share."""

    first: int
    count: int
    group: ParallelGroup

    def is_worth(self, rows: int) -> bool:
        """Whether sending the logits of so many rows would take longer than finding the best ones by parts does."""
        return rows * self.count >= _WORTH

    def best(self, values: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The greatest value of all ranks, and its token: of the same ones the smallest. Two numbers go for each row.

        Args:
            values: [rows], of this rank's best tokens.
            token_ids: int64 [rows], which those are.

        Returns:
            float64 [rows], NaN where any rank has it, and int64 [rows].
        """
        pairs = torch.stack((values.double(), token_ids.double()), dim=-1)  # exact for both
        values, ids = self.group.all_gather_last(pairs).view(len(pairs), -1, 2).unbind(-1)
        greatest = values.amax(-1)
        return greatest, ids.masked_fill(values != greatest[:, None], torch.inf).amin(-1).nan_to_num_(0, 0).long()
