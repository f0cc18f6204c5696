"""The indexer of DeepSeek sparse attention (DeepSeek-V3.2, 2025): chooses the positions that a layer attends to."""

from __future__ import annotations

import torch

from engine_svc.attention.chosen import ChosenAttention, IndexQueries
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ReplicatedLinear, whole_linear
from engine_svc.layers.norm import LayerNorm
from engine_svc.models.attention import LayerCache, StepInputs
from engine_svc.models.latent_config import IndexerConfig, LatentConfig


class Indexer(torch.nn.Module):
    """Scores positions with few small heads; every rank has all of them, so that all ranks choose alike."""

    def __init__(
        self, hidden_size: int, latent: LatentConfig, form: IndexerConfig, chosen: ChosenAttention,
        context: LayerContext,
    ) -> None:  # fmt: skip
        super().__init__()
        assert latent.query_rank is not None
        self._ops, self._form, self._chosen = context.ops, form, chosen
        self.wq_b = whole_linear(latent.query_rank, form.heads * form.head_dim, bias=False, context=context.at("wq_b"))
        self.wk = whole_linear(hidden_size, form.head_dim, bias=False, context=context.at("wk"))
        self.k_norm = LayerNorm(form.head_dim, form.norm_eps, context=context, bias=True)
        self._rotated_dim = latent.rotated_dim
        self.weights_proj = ReplicatedLinear(hidden_size, form.heads, context=context.at("weights_proj"))

    def forward(
        self, hidden: torch.Tensor, query_vectors: torch.Tensor, cache: LayerCache, step: StepInputs
    ) -> torch.Tensor | None:
        """Caches the new tokens' keys, and chooses the positions that queries attend to.

        Args:
            hidden: [tokens, hidden_size]
            query_vectors: [outputs, query_rank], which the layer's queries are derived from; see
                StepInputs.output_rows.

        Returns:
            int32 [outputs, most], of which only the rows of choosing queries have a meaning; None if there are none.
        """
        index, choosing = cache.index_keys, cache.choosing
        assert index is not None
        keys = self._turned(self.k_norm(self.wk(hidden))[:, None], step.rotary)
        self._chosen.keys.write(keys, keys, index, cache.prepared.metadata.slot_mapping)
        if choosing is None:
            return None
        rotary, own = (choosing.take(step.outputs(self._ops, each)) for each in (step.rotary, hidden))
        query = self.wq_b(choosing.take(query_vectors)).view(len(own), self._form.heads, -1)
        queries = IndexQueries(self._turned(query, rotary), self.weights_proj(own))
        found = self._chosen.choose(queries, index, choosing)
        if choosing.others is None:
            return found
        return found.new_zeros((len(query_vectors), found.shape[1])).index_copy_(0, choosing.rows, found)

    def _turned(self, heads: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        """Rotates the first values of [tokens, heads, head_dim], or the last ones; may be in place."""
        if not self._form.rotates_last:
            return self._ops.rotate(heads, rotary, heads.shape[1], None, self._form.interleaved)
        ends = heads[..., heads.shape[2] - self._rotated_dim :]
        ends.copy_(self._ops.rotate(ends.contiguous(), rotary, heads.shape[1], None, self._form.interleaved))
        return heads
