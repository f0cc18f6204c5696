"""Fused forward pass of one decoder layer for one or two tokens: seven kernels instead of ten."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine_svc.layers.norm import RMSNorm
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.mlp import MLP, RowForms
from engine_svc.ops.base import RowProduct


class RowPass(NamedTuple):
    """The fused pass of a layer with norms before attention and feed-forward; products include small operations."""

    attention: Attention
    qkv: RowProduct
    output: RowProduct
    feed_forward: torch.nn.Module
    dense: RowForms | None  # None means that the feed-forward layer is computed as for many rows
    norms: tuple[RMSNorm, RMSNorm]
    most_rows: int  # the most rows that all products support

    @classmethod
    def of(
        cls, attention: torch.nn.Module | None, feed_forward: torch.nn.Module, norms: tuple[torch.nn.Module, ...]
    ) -> RowPass | None:
        """The fused pass of a layer; None if its products have no fused form, or it has other parts between them."""
        first, second = norms
        if type(attention) is not Attention or not isinstance(first, RMSNorm) or not isinstance(second, RMSNorm):
            return None
        qkv, output = attention.qkv_proj.row, attention.o_proj.row
        if qkv is None or output is None:
            return None
        dense = feed_forward.row_forms() if isinstance(feed_forward, MLP) else None
        products = [qkv, output, *(() if dense is None else (dense.gate_up, dense.down))]
        most_rows = min(product.most_rows for product in products)
        return cls(attention, qkv, output, feed_forward, dense, (first, second), most_rows)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: LayerCache, step: StepInputs
    ) -> torch.Tensor:
        """See DecoderLayer.forward; for at most `most_rows` tokens."""
        first, second = self.norms
        projected = self.qkv.of_norm(hidden, residual, first.weight, first.epsilon)
        self.output.add_to(residual, self.attention.attend_projected(projected, cache, step), hidden)
        if self.dense is None:
            put_out: torch.Tensor = self.feed_forward(second(residual))
            return put_out
        gate_up = self.dense.gate_up.of_norm(residual, None, second.weight, second.epsilon)
        return self.dense.down.of_activated(gate_up, self.dense.activation)
