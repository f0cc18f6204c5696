"""Rotation of queries and keys, as attention backends run it before attending."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.ops.base import HeadNorms, Ops


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding of query and key heads, with their norms before or after it; see Ops.rotate."""

    ops: Ops
    table_rows: torch.Tensor
    num_query: int
    norms: HeadNorms | None
    interleaved: bool = False
    norms_are_last: bool = False
    output_rows: torch.Tensor | None = None  # int64, tokens whose queries attend; None means all of them

    def queries(self, query: torch.Tensor) -> torch.Tensor:
        """[tokens, query heads, head_dim] -> the rows of the tokens whose queries attend."""
        return query if self.output_rows is None else self.ops.take_rows(query, self.output_rows)

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Rotates query and key heads [tokens, heads, head_dim]; may work in place."""
        rotate, of_heads = self.ops.rotate, (self.num_query, self.norms, self.interleaved)
        if not self.norms_are_last:
            return rotate(heads, self.table_rows, *of_heads)
        turned = rotate(heads, self.table_rows, self.num_query, None, self.interleaved)
        return rotate(turned, self.table_rows[..., :0], *of_heads)
