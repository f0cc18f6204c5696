"""Plain torch: any device and type, and what the other implementations are compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.ops.base import HeadNorms, Ops, Product
from engine_svc.ops.int8 import quantize_rows

_INT_MM_ROWS = 32  # CUDA's int8 product wants more than 16 rows


class PlainOps(Ops):
    """See Ops."""

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.matrix."""

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = F.linear(hidden, weight, bias)
            return output.float() if wide else output

        return product

    def int8_matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.int8_matrix."""
        quantized, weight_scale = quantize_rows(weight)
        transposed = quantized.t()

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            rows, scale = quantize_rows(hidden)
            padded = F.pad(rows, (0, 0, 0, max(0, _INT_MM_ROWS - len(rows))))
            output = torch._int_mm(padded, transposed)[: len(rows)].float() * scale[:, None] * weight_scale
            if bias is not None:
                output += bias.float()
            return output if wide else output.to(hidden.dtype)

        return product

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
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Ops.silu_and_multiply."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
