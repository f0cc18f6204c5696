"""The C++ kernels."""

from __future__ import annotations

import torch

from engine_svc.native.library import TYPES, Kernels
from engine_svc.ops.base import Activation, ExpertsProduct, HeadNorms, Product
from engine_svc.ops.packing import experts_product, padded, padded_bias, pointer
from engine_svc.ops.plain import PlainOps


class NativeOps(PlainOps):
    """A product with an odd input size falls back to torch: the kernels take 2 values at a time."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.matrix."""
        outputs, size = weight.shape
        if size % 2:
            return super().matrix(weight, bias)
        packed = self._pack_bf16(weight[None])
        added = padded_bias(bias, outputs)
        kernel = self.kernels.matrix_bf16

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = hidden.new_empty((hidden.shape[0], outputs), dtype=torch.float32 if wide else torch.bfloat16)
            kernel(
                hidden.data_ptr(), hidden.shape[0], hidden.stride(0), packed.data_ptr(), pointer(added),
                output.data_ptr(), outputs, size // 2, wide, torch.get_num_threads(),
            )  # fmt: skip
            return output

        return product

    def _pack_bf16(self, weights: torch.Tensor) -> torch.Tensor:
        """Packs each of [count, outputs, size]."""
        count, outputs, size = weights.shape
        packed = torch.empty((count, padded(outputs), size), dtype=torch.bfloat16)
        for weight, target in zip(weights, packed, strict=True):
            self.kernels.pack_bf16(weight.data_ptr(), outputs, size, target.data_ptr())
        return packed

    def experts(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertsProduct:
        """See Ops.experts."""
        if gate_up.shape[2] % 2 or down.shape[2] % 2:
            return super().experts(gate_up, down)
        packed = self._pack_bf16(gate_up), self._pack_bf16(down)
        return experts_product(self.kernels.experts_bf16, down.shape, packed)

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
