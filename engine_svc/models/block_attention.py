"""Grouped-query attention to blocks of positions that an indexer chooses (MiniMax M3)."""

from __future__ import annotations

import torch

from engine_svc.attention.chosen import Choosing
from engine_svc.attention.chosen_blocks import ChosenBlocks
from engine_svc.attention.rotation import Rotation
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, qkv_parts
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.split import Part
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.models.latent_config import BlockIndexerConfig
from engine_svc.ops.base import HeadNorms


class BlockIndexer(torch.nn.Module):
    """Scores positions with a head for each of the rank's key-value heads; all ranks cache the same keys."""

    def __init__(
        self, config: ModelConfig, form: BlockIndexerConfig, chosen: ChosenBlocks, context: LayerContext
    ) -> None:
        super().__init__()
        self._ops, self._chosen = context.ops, chosen
        dim = form.head_dim
        own = qkv_parts(context.groups.tensor, config.num_heads, config.num_kv_heads, dim)["k"]
        self._heads = own.count // dim
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size, {"q": own, "k": Part(0, dim, dim)}, bias=False, context=context.at("qkv_proj")
        )
        self.q_norm, self.k_norm = (
            RMSNorm(dim, config.norm_eps, context=context, offset=config.norm_offset) for _ in range(2)
        )
        self._norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, config.norm_eps)

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor | None:
        """Caches the new tokens' keys, and chooses the blocks that queries attend to.

        Args:
            hidden: [tokens, hidden_size]

        Returns:
            int32 [choosing, key-value heads, blocks]; None if no query chooses.
        """
        assert cache.index_keys is not None
        turned = Rotation(self._ops, step.rotary, self._heads, self._norms)
        query, keys = turned(self.qkv_proj(hidden).unflatten(1, (self._heads + 1, -1))).split((self._heads, 1), dim=1)
        slots = cache.prepared.metadata.slot_mapping
        self._chosen.keys.write(keys, keys, cache.index_keys, slots)
        if (choosing := cache.choosing) is None:
            return None
        return self._chosen.choose(choosing.take(step.outputs(self._ops, query)), cache.index_keys, choosing)


class BlockAttention(Attention):
    """Attention in which queries that see many positions attend to chosen blocks of them."""

    def __init__(self, config: ModelConfig, form: BlockIndexerConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        assert isinstance(context.chosen, ChosenBlocks)
        self._chosen = context.chosen
        self.indexer = BlockIndexer(config, form, self._chosen, context.at("indexer"))

    def _attended(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        blocks = self.indexer(hidden, cache, step)
        if cache.choosing is None:
            return super()._attended(hidden, cache, step)
        heads = self.qkv_proj(hidden).view(len(hidden), -1, self._head_dim)
        return self._attend_chosen(heads, blocks, cache, cache.choosing, step).flatten(1)

    def _attend_chosen(
        self, heads: torch.Tensor, blocks: torch.Tensor, cache: LayerCache, choosing: Choosing, step: StepInputs
    ) -> torch.Tensor:
        """Queries, keys and values [tokens, all heads, head_dim] → [outputs, query heads, head_dim]."""
        together, value = heads.split((self._heads + self._kv_heads, self._kv_heads), dim=1)
        query, key = self._rotation(step)(together).split((self._heads, self._kv_heads), dim=1)
        query, others = step.outputs(self._ops, query), choosing.others
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if others is None:
            self._chosen.write(key, value, cache.cache, choosing, self.options)
        else:
            output[others.rows] = step.attention.forward(
                query[others.rows], key, value, cache.cache, others.prepared, self.options
            )
        output[choosing.rows] = self._chosen.attend(choosing.take(query), blocks, cache.cache, choosing, self.options)
        return output
