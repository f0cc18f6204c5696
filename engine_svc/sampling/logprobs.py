"""Log-probabilities of sampled and prompt tokens, from the unmodified logits."""

from __future__ import annotations

import torch

from engine_svc.plan import PositionLogprobs


def position_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, counts: list[int]) -> list[PositionLogprobs]:
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
    own_list, ranks_list, ids_list = own[:, 0].tolist(), ranks.tolist(), token_ids.tolist()
    values = best.values.tolist() if best else [[]] * len(counts)
    indices = best.indices.tolist() if best else [[]] * len(counts)
    return [
        PositionLogprobs([ids_list[row], *indices[row][:count]], [own_list[row], *values[row][:count]], ranks_list[row])
        for row, count in enumerate(counts)
    ]
