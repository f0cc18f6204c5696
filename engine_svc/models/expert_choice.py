"""Which experts of a mixture a token goes through."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ReplicatedLinear
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.models.config import MoeConfig


class ExpertChoice(ReplicatedLinear):
    """Scores all experts and takes the best; where experts are in groups, those of the best groups."""

    def __init__(self, hidden_size: int, moe: MoeConfig, *, context: LayerContext) -> None:
        super().__init__(hidden_size, moe.num_experts, context=context)
        self._moe = moe
        self.e_score_correction_bias: LoadedParameter | None = None
        if moe.scoring == "sigmoid":
            self.e_score_correction_bias = LoadedParameter((moe.num_experts,), torch.float32, context.device)
            self.e_score_correction_bias.loader = self._load_bias

    def choose(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, hidden_size] → weights float32 and ids int64, both [tokens, experts_per_token]."""
        moe, bias = self._moe, self.e_score_correction_bias
        logits = self(hidden)
        scores = logits.softmax(-1) if moe.scoring == "softmax" else logits.sigmoid()
        ranked = scores if bias is None else scores + bias
        if moe.num_groups > 1:
            ranked = self._of_the_best_groups(ranked)
        weights, expert_ids = ranked.topk(moe.experts_per_token, dim=-1)
        if bias is not None:
            weights = scores.gather(-1, expert_ids)
        if moe.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * moe.scale if moe.scale != 1.0 else weights, expert_ids

    def _of_the_best_groups(self, ranked: torch.Tensor) -> torch.Tensor:
        """Minus infinity for the others. A group is as good as its best expert, or (DeepSeek V3) its two best."""
        groups = ranked.unflatten(-1, (self._moe.num_groups, -1))
        best = groups.topk(1 if self.e_score_correction_bias is None else 2, dim=-1).values.sum(-1)
        chosen = torch.zeros_like(best, dtype=torch.bool)
        chosen.scatter_(-1, best.topk(self._moe.chosen_groups, dim=-1).indices, value=True)
        return groups.masked_fill(~chosen[..., None], -torch.inf).flatten(-2)

    def _load_bias(self, source: TensorSlice, part: str) -> None:
        if self.e_score_correction_bias is not None:
            self.e_score_correction_bias.write(part, self.e_score_correction_bias, source, (slice(None),))
