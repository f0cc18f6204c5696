"""Compressed attention with gates on its output from the projection of queries (A.X K2)."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, even_parts
from engine_svc.models.config import ModelConfig
from engine_svc.models.latent_attention import LatentAttention, Projected
from engine_svc.models.latent_config import LatentConfig


class QueryGatedLatentAttention(LatentAttention):
    """Compressed attention whose projection of queries also produces each head's gates, one for each value.

    That projection reads the vectors that queries are derived from after and before their norm. Each head's query comes
    before its gates. They stay one matrix, because quantized ones may have a scale for rows of both.
    """

    def __init__(self, config: ModelConfig, latent: LatentConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, latent, context, index)
        assert latent.query_rank is not None
        self._sizes = (latent.plain_dim + latent.rotated_dim, latent.value_dim)
        rows = even_parts(context.groups.tensor, {"": config.num_heads * sum(self._sizes)})
        self.q_b_proj = ColumnParallelLinear(2 * latent.query_rank, rows, bias=False, context=context.at("q_b_proj"))

    def _projected(self, hidden: torch.Tensor) -> Projected:
        """See LatentAttention."""
        before = self.q_a_proj(hidden)
        after = self.q_a_layernorm(before)
        heads = self.q_b_proj(self._ops.join((after[:, None], before[:, None]))).unflatten(1, (self._heads, -1))
        queries, gates = (self._ops.join((part,)) for part in heads.split(self._sizes, dim=2))
        return Projected(after, queries.unflatten(1, (self._heads, -1)), gates)
