"""The part of the vocabulary that a rank has logits of, and searches over all ranks without gathering all logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine_svc.parallel.group import ParallelGroup

_WORTH = 2**18  # logits per rank


@dataclass(frozen=True)
class VocabularyPart:
    """A rank's range of a vocabulary that is divided equally among the ranks of a group; the last may have fewer."""

    size: int  # of the vocabulary
    group: ParallelGroup

    @property
    def share(self) -> int:
        """Tokens of each rank except the last."""
        return -(-self.size // self.group.world_size)

    @property
    def first(self) -> int:
        """The rank's first token."""
        return self.group.rank * self.share

    @property
    def count(self) -> int:
        """The rank's number of tokens; may be less than 1 if there are more ranks than tokens."""
        return min(self.share, self.size - self.first)

    def is_worth(self, rows: int) -> bool:
        """Whether finding tokens in parts is faster than gathering the logits of this many rows."""
        return rows * self.count >= _WORTH

    def whole(self, logits: torch.Tensor) -> torch.Tensor:
        """Gathers all ranks' logits: float32 [rows, vocabulary]."""
        if self.count < self.share:
            logits = F.pad(logits, (0, self.share - self.count))
        return self.group.all_gather_last(logits)[:, : self.size]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """[rows, values], the same shape on each rank → [rows, ranks, values]."""
        return self.group.all_gather_last(values).view(len(values), self.group.world_size, -1)

    def best(self, values: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The greatest value over all ranks and its token; of equal values the smallest token. Sends 2 numbers per row.

        Args:
            values: [rows], the values of this rank's best tokens.
            token_ids: int64 [rows], those tokens.

        Returns:
            float64 [rows], NaN if any rank's value is NaN, and int64 [rows].
        """
        pairs = torch.stack((values.double(), token_ids.double()), dim=-1)  # exact for both
        values, ids = self.gather(pairs).unbind(-1)
        greatest = values.amax(-1)
        return greatest, ids.masked_fill(values != greatest[:, None], torch.inf).amin(-1).nan_to_num_(0, 0).long()

    def at(self, logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """The logits of single tokens, on any rank: float32 [count]. Sends one number for each.

        Args:
            logits: [rows, tokens of this rank]
            rows, token_ids: int64 [count]
        """
        own = logits[rows, (token_ids - self.first).clamp(0, self.count - 1)]
        owners = token_ids // self.share
        return self.gather(own[:, None])[:, :, 0].gather(1, owners[:, None])[:, 0]
