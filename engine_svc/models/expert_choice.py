"""The router of a mixture: decides which experts a token goes through."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from engine_svc.layers.context import LayerContext
from engine_svc.layers.fused_experts import Flat
from engine_svc.layers.linear import ReplicatedLinear
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.models.config import MoeConfig
from engine_svc.ops.base import Routing, of_present


class ExpertChoice(ReplicatedLinear):
    """Scores all experts and takes the best; if experts are in groups, the best ones of the best groups."""

    def __init__(self, hidden_size: int, moe: MoeConfig, *, context: LayerContext) -> None:
        self.num_experts, self.experts_per_token = moe.num_experts + (moe.idle_experts or 0), moe.experts_per_token
        super().__init__(hidden_size, self.num_experts, bias=moe.router_bias, context=context)
        self._present, self._softcap = context.present, moe.logits_softcap
        self._routing = Routing(
            moe.experts_per_token, moe.renormalize, moe.scoring, moe.num_groups, moe.chosen_groups, moe.scale, moe.near
        )
        self.expert_scales: LoadedParameter | None = None
        if moe.expert_scales:
            self.expert_scales = LoadedParameter((moe.num_experts,), torch.float32, context.device)
        self.record: torch.Tensor | None = None  # int64 [rows, experts_per_token]: see runner/routed_experts.py
        self.e_score_correction_bias: LoadedParameter | None = None
        if moe.choice_bias:
            self.e_score_correction_bias = LoadedParameter((self.num_experts,), torch.float32, context.device)
            self.e_score_correction_bias.default = moe.default_bias
            self.e_score_correction_bias.loader = self._load_bias

    def choose(self, hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Chooses experts: [tokens, hidden_size] → weights float32 and ids int64, both [tokens, experts_per_token].

        The ids of padding rows are -1, so that no expert's weights are read for them.
        """
        bias, present, into = self.e_score_correction_bias, self._present.count, self._record_of(len(hidden))
        logits = self(hidden) if self._softcap is None else self._ops.softcap(self(hidden), self._softcap)
        return self._ops.choose_experts(logits, bias, self._routing, present, self.expert_scales, into)

    def _record_of(self, tokens: int) -> torch.Tensor | None:
        if self.record is None:
            return None
        assert tokens <= len(self.record)
        return self.record[:tokens]

    def _load_bias(self, source: TensorSlice, part: str) -> None:
        if self.e_score_correction_bias is not None:
            # Ernie's bias has one more dimension in front.
            self.e_score_correction_bias.write(part, self.e_score_correction_bias, Flat(source), (slice(None),))


class TableChoice(ExpertChoice):
    """Looks up each token's experts in a table, and only weighs them by their scores (DeepSeek V4's first layers)."""

    def __init__(self, hidden_size: int, moe: MoeConfig, *, context: LayerContext) -> None:
        super().__init__(hidden_size, moe, context=context)
        assert moe.table_tokens is not None
        self._scale, self._experts = moe.scale, moe.num_experts
        self.table = LoadedParameter((moe.table_tokens, moe.experts_per_token), torch.int64, context.device)
        self.table.loader = self._load_table

    def pack(self) -> None:
        """See PackedLayer.pack. A table of --load-format dummy is random: its entries become experts that there are."""
        super().pack()
        self.table.data.remainder_(self._experts)

    def choose(self, hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See ExpertChoice.choose."""
        assert token_ids is not None
        expert_ids = self.table[token_ids]
        weights = F.softplus(self(hidden).gather(1, expert_ids)).sqrt()
        weights = weights * (self._scale / weights.sum(dim=1, keepdim=True))
        if (present := self._present.count) is not None:
            expert_ids = of_present(expert_ids, present)
        into = self._record_of(len(hidden))
        return weights, expert_ids if into is None else into.copy_(expert_ids)

    def _load_table(self, source: TensorSlice, part: str) -> None:
        self.table.write(part, self.table, source, (slice(None), slice(None)))
        least, most = self.table.aminmax()
        if least < 0 or most >= self._experts:
            raise ValueError(f"experts from {least} to {most}, but there are {self._experts}")
