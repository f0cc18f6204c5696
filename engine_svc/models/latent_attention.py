"""Compressed attention (multi-head latent attention of DeepSeek V2), as attention with a single key-value head.

A head's plain key is the cached vector times a matrix of the head, and so is its value. Instead of making keys and
values of all heads, the first matrix is applied to the query and the second to what attention gives: then all heads
attend to the same thing, the vector and the rotated part of the key, which are all that is cached.
"""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionOptions
from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.split import Part
from engine_svc.models.attention import LayerCache, StepInputs
from engine_svc.models.config import LatentConfig, ModelConfig
from engine_svc.ops.base import HeadsProduct

_NORM_EPSILON = 1e-6  # of the norms inside, whatever the configuration says


class LatentAttention(torch.nn.Module):
    """The same calls as Attention's."""

    def __init__(self, config: ModelConfig, latent: LatentConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self._latent = latent
        self._heads = context.groups.tensor.divide(config.num_heads, "attention heads")
        self._options = AttentionOptions(config.attention_scale)
        size = latent.plain_dim + latent.rotated_dim
        first = context.groups.tensor.rank * self._heads
        queries = Part(first * size, self._heads * size, config.num_heads * size)

        def whole(rows: int) -> dict[str, Part]:
            return {"": Part(0, rows, rows)}

        if latent.query_rank is None:
            # Under the name that parameter_name gives to a checkpoint's q_proj.
            self.qkv_proj = ColumnParallelLinear(config.hidden_size, {"q": queries}, bias=False, context=context)
        else:
            self.q_a_proj = ColumnParallelLinear(
                config.hidden_size, whole(latent.query_rank), bias=config.qkv_bias, context=context
            )
            self.q_a_layernorm = RMSNorm(latent.query_rank, _NORM_EPSILON, context=context)
            self.q_b_proj = ColumnParallelLinear(latent.query_rank, {"": queries}, bias=False, context=context)
        self.kv_a_proj_with_mqa = ColumnParallelLinear(
            config.hidden_size, whole(latent.rank + latent.rotated_dim), bias=config.qkv_bias, context=context
        )
        self.kv_a_layernorm = RMSNorm(latent.rank, _NORM_EPSILON, context=context)
        self.kv_b_proj = HeadMatrices(self._heads, first, latent, context)
        self.o_proj = RowParallelLinear(
            config.num_heads * latent.value_dim, config.hidden_size, bias=config.output_bias, context=context
        )

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        latent, tokens = self._latent, len(hidden)
        plain, rotated = (
            self._query(hidden).view(tokens, self._heads, -1).split((latent.plain_dim, latent.rotated_dim), dim=-1)
        )
        vector, rotated_key = self.kv_a_proj_with_mqa(hidden).split((latent.rank, latent.rotated_dim), dim=-1)
        vector = self.kv_a_layernorm(vector.contiguous())
        both = _by_halves(torch.cat((rotated, rotated_key[:, None]), dim=1))
        both = self._ops.rotate(both, step.rotary, self._heads, None)
        query = torch.cat((self.kv_b_proj.to_vector(plain), both[:, : self._heads]), dim=-1)
        key = torch.cat((vector[:, None], both[:, self._heads :]), dim=-1)
        output = step.attention.forward(query, key, key, cache.cache, cache.prepared, self._options)
        values = self.kv_b_proj.to_values(output[..., : latent.rank])
        return self.o_proj(values.reshape(tokens, -1))

    def _query(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._latent.query_rank is None:
            return self.qkv_proj(hidden)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))


class HeadMatrices(PackedLayer):
    """From a rank's heads to the cached vector and back: each head's matrix for keys and its matrix for values."""

    def __init__(self, heads: int, first_head: int, latent: LatentConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self._plain_dim = latent.plain_dim
        self._rows = latent.plain_dim + latent.value_dim
        self._first = first_head * self._rows
        self._shape = (heads, self._rows, latent.rank)
        self._to_vector: HeadsProduct | None = None
        self._to_values: HeadsProduct | None = None
        self.weight = LoadedParameter((heads * self._rows, latent.rank), context.dtype, context.device)
        self.weight.loader = self._load_weight

    def pack(self) -> None:
        """See PackedLayer.pack."""
        keys, values = self.weight.view(self._shape).split((self._plain_dim, self._rows - self._plain_dim), dim=1)
        self._to_vector = self._ops.head_matrices(keys.transpose(1, 2))
        self._to_values = self._ops.head_matrices(values)
        del self.weight

    def to_vector(self, plain: torch.Tensor) -> torch.Tensor:
        """The plain part of queries, [tokens, heads, plain_dim] → [tokens, heads, rank]."""
        assert self._to_vector is not None
        return self._to_vector(plain)

    def to_values(self, vectors: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, rank] → [tokens, heads, value_dim]."""
        assert self._to_values is not None
        return self._to_values(vectors)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        rows = slice(self._first, self._first + len(self.weight))
        self.weight.write(part, self.weight, source, (rows, slice(None)))


def _by_halves(rotated: torch.Tensor) -> torch.Tensor:
    """Pairs that stand side by side, as DeepSeek rotates them, to where ours are rotated: half a head apart.

    In queries and keys alike, so that their products stay the same.
    """
    return rotated.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
