"""Typical acceptance: drafted tokens that are likely enough count, though the model would have sampled others.

The criterion of Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024),
after the truncation of Hewitt, Manning and Liang (2022): where the model is sure of what follows, only that is taken;
where much may follow, more is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_svc.sampling.rows import NO_DRAFT, SampledRows
from engine_svc.sampling.truncation import processed_logits
from engine_svc.transfer import to_device
from quire.sampling import SamplingParameters


@dataclass(frozen=True)
class TypicalAcceptance:
    """Takes a draft whose probability is above min(threshold, alpha * exp(-entropy)) at its position.

    Both are of what the token would be drawn from: with temperature and whatever else changes the logits. Greedy
    sequences draw nothing: theirs are the likeliest tokens as ever.
    """

    threshold: float
    alpha: float

    def accept(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        rows: SampledRows,
        parameters: Sequence[SamplingParameters],
    ) -> torch.Tensor:
        """The sampled tokens, with drafts in the place of those where they are taken.

        Args:
            logits: float32 [rows, vocabulary]
            token_ids: int64 [rows], sampled.
            parameters: of each row.
        """
        drawn = [row for row, each in enumerate(rows.drafts) if each != NO_DRAFT and not parameters[row].is_greedy]
        if not drawn:
            return token_ids
        index = to_device(drawn, logits.device)
        drafts = to_device([rows.drafts[row] for row in drawn], logits.device)
        probabilities = processed_logits(logits[index], [parameters[row] for row in drawn]).softmax(-1)
        entropy = torch.special.entr(probabilities).sum(-1)
        least = (self.alpha * torch.exp(-entropy)).clamp_(max=self.threshold)
        is_taken = probabilities.gather(-1, drafts[:, None])[:, 0] > least
        return token_ids.index_copy(0, index, torch.where(is_taken, drafts, token_ids[index]))
