"""Typical acceptance: drafted tokens that are likely enough are accepted, even if the model sampled other tokens.

The criterion is that of Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads"
(2024), after the truncation of Hewitt, Manning and Liang (2022): where the model is certain of the next token, only
that one is accepted; where many may follow, more are.
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
    """Accepts a draft whose probability is above min(threshold, alpha * exp(-entropy)) at its position.

    Probability and entropy are those of the distribution that the token is sampled from, with temperature and all other
    changes of the logits. Greedy sequences are not affected: they get the likeliest tokens as always.
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
        """Returns the sampled tokens, replaced by the drafts where these are accepted.

        Args:
            logits: float32 [rows, vocabulary]
            token_ids: int64 [rows], the sampled tokens.
            parameters: one per row.
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
