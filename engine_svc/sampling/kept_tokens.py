"""The tokens that truncation has kept of a row, from which its token was sampled (--return-sampling-mask)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_svc.sampling.truncation import processed_logits
from engine_svc.transfer import to_host
from quire.sampling import SamplingParameters

_MOST = 2048  # that top-k may keep: without a bound, a row could have the whole vocabulary


@dataclass(frozen=True)
class KeptTokens:
    """Tokens of some rows, being copied to the host."""

    token_ids: torch.Tensor  # int64 [rows, most], the most likely first
    counts: torch.Tensor  # int64 [rows], how many of them are kept

    def read(self) -> list[list[int]]:
        """One list per row. Call it once the step is done."""
        rows = zip(self.token_ids.tolist(), self.counts.tolist(), strict=True)
        return [token_ids[:count] for token_ids, count in rows]


def has_few(parameters: SamplingParameters) -> bool:
    """Whether the kept tokens are few enough to be returned; a greedy row does not truncate."""
    return not parameters.is_greedy and 0 < parameters.top_k <= _MOST


def kept_tokens(logits: torch.Tensor, parameters: Sequence[SamplingParameters], token_ids: torch.Tensor) -> KeptTokens:
    """Finds what was kept of each row; its token is always part of it.

    Args:
        logits: float32 [rows, vocabulary]
        parameters: one per row; see `has_few`.
        token_ids: int64 [rows], the sampled tokens.
    """
    kept = processed_logits(logits, parameters, token_ids)
    # One more than top-k, because a token as likely as the last one kept may have been sampled in its place.
    best = kept.topk(min(1 + max(each.top_k for each in parameters), kept.shape[-1]), dim=-1)
    return KeptTokens(to_host(best.indices), to_host(best.values.isfinite().sum(-1)))
