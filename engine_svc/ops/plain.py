"""Plain torch: any device and type, and what the other implementations are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine_svc.ops.base import Activation, ExpertsProduct, HeadNorms, HeadsProduct, Ops, Product


class PlainOps(Ops):
    """See Ops."""

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.matrix."""

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = F.linear(hidden, weight, bias)
            return output.float() if wide else output

        return product

    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """See Ops.head_matrices."""
        return lambda hidden: torch.bmm(hidden.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)

    def experts(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertsProduct:
        """See Ops.experts."""
        pairs = zip(gate_up, down, strict=True)
        return experts_of_products(
            self, [(self.matrix(first, None), self.matrix(second, None)) for first, second in pairs]
        )

    def rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Ops.rms_norm."""
        return F.rms_norm(hidden, weight.shape, weight, epsilon)

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_rms_norm."""
        return F.rms_norm(residual.add_(hidden), weight.shape, weight, epsilon)

    def rotate(
        self, heads: torch.Tensor, table_rows: torch.Tensor, num_query: int, norms: HeadNorms | None
    ) -> torch.Tensor:
        """See Ops.rotate."""
        if norms is not None:
            query = self.rms_norm(heads[:, :num_query], norms.query, norms.epsilon)
            heads = torch.cat((query, self.rms_norm(heads[:, num_query:], norms.key, norms.epsilon)), dim=1)
        cosine, sine = table_rows[:, 0, None], table_rows[:, 1, None]
        half = table_rows.shape[-1]
        first, second, rest = heads.split((half, half, heads.shape[-1] - 2 * half), dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)

    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops.activate_and_multiply."""
        gate, up = gate_up.chunk(2, dim=-1)
        return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def experts_of_products(ops: Ops, pairs: Sequence[tuple[Product, Product]]) -> ExpertsProduct:
    """One expert after the other, each of two products: with gate and up, and back."""

    def product(hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(hidden, dtype=torch.float32)
        for index in expert_ids.unique().tolist():
            rows, choice = torch.nonzero(expert_ids == index, as_tuple=True)
            first, second = pairs[index]
            result = second(ops.activate_and_multiply(first(hidden[rows]), "silu"), wide=True)
            output.index_add_(0, rows, result * weights[rows, choice, None])
        return output.to(hidden.dtype)

    return product
