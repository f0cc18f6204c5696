"""The C++ kernels."""

from __future__ import annotations

import torch

from engine_svc.native.library import TYPES, Kernels
from engine_svc.ops.base import Activation, ExpertsProduct, HeadNorms, HeadsProduct, Ops, Product
from engine_svc.ops.packing import experts_product, matrix_product, pack, pointer


class NativeOps(Ops):
    """See Ops. float32, bfloat16 and float16, on every level."""

    batch_invariant = True

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.matrix."""
        return matrix_product(self.kernels, pack(self.kernels, weight[None]), weight.shape, bias)

    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """See Ops.head_matrices."""
        products = [self.matrix(each, None) for each in weight]
        return lambda hidden: torch.stack(
            [product(rows) for product, rows in zip(products, hidden.unbind(1), strict=True)], dim=1
        )

    def experts(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertsProduct:
        """See Ops.experts."""
        return experts_product(self.kernels, pack(self.kernels, gate_up), pack(self.kernels, down), down.shape)

    def rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Ops.rms_norm."""
        return self._norm(hidden, None, weight, epsilon)

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_rms_norm."""
        return self._norm(hidden, residual, weight, epsilon)

    def _norm(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        output = torch.empty_like(hidden)
        self.kernels.rms_norm(
            TYPES[hidden.dtype], hidden.data_ptr(), pointer(residual), weight.data_ptr(), output.data_ptr(),
            hidden.numel() // weight.shape[0], weight.shape[0], epsilon,
        )  # fmt: skip
        return output

    def rotate(
        self, heads: torch.Tensor, table_rows: torch.Tensor, num_query: int, norms: HeadNorms | None
    ) -> torch.Tensor:
        """See Ops.rotate."""
        tokens, count, dim = heads.shape
        query, key, epsilon = (
            (norms.query.data_ptr(), norms.key.data_ptr(), norms.epsilon) if norms else (None, None, 0.0)
        )
        self.kernels.rotate(
            TYPES[heads.dtype], heads.data_ptr(), heads.stride(0), table_rows.data_ptr(), query, key, epsilon,
            tokens, num_query, count - num_query, dim, 2 * table_rows.shape[-1],
        )  # fmt: skip
        return heads

    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops.activate_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty((rows, size))
        self.kernels.activate_and_multiply(
            TYPES[gate_up.dtype], gate_up.data_ptr(), output.data_ptr(), rows, size, activation == "gelu_tanh"
        )
        return output
