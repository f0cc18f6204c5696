"""Log-probabilities of sampled and prompt tokens, from the unmodified logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.plan import PositionLogprobs
from engine_svc.transfer import to_host


@dataclass(frozen=True)
class ScoredPositions:
    """Scores on their way to the host."""

    token_ids: torch.Tensor  # int64 [rows]
    logprobs: torch.Tensor  # float32 [rows], of these tokens
    ranks: torch.Tensor  # int64 [rows]
    best: tuple[torch.Tensor, torch.Tensor] | None  # float32 and int64 [rows, most]: the most likely tokens
    counts: list[int]

    def read(self) -> list[PositionLogprobs]:
        """One entry for each row, once the step is done."""
        own, ranks, ids = self.logprobs.tolist(), self.ranks.tolist(), self.token_ids.tolist()
        values, indices = (part.tolist() for part in self.best) if self.best else ([[]] * len(ids),) * 2
        return [
            PositionLogprobs([ids[row], *indices[row][:count]], [own[row], *values[row][:count]], ranks[row])
            for row, count in enumerate(self.counts)
        ]


def score_positions(logits: torch.Tensor, token_ids: torch.Tensor, counts: list[int]) -> ScoredPositions:
    """What stands at each position, and the most likely alternatives.

    Args:
        logits: float32 [rows, vocabulary]
        token_ids: int64 [rows], the token at each position.
        counts: alternatives wanted for each row.
    """
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(-1, token_ids[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    most = max(counts)
    best = logprobs.topk(most, dim=-1) if most else None
    return ScoredPositions(
        to_host(token_ids),
        to_host(own[:, 0]),
        to_host(ranks),
        (to_host(best.values), to_host(best.indices)) if best else None,
        counts,
    )
