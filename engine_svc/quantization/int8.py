"""Dynamic W8A8: weights of 16 or 32 bits become int8 as they are loaded, and inputs as they come.

Symmetric, with a scale for each output of a weight and for each row of inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.ops.base import ExpertsProduct, Product
from engine_svc.ops.native import NativeOps
from engine_svc.ops.packing import experts_product, matrix_product, pack_int8
from engine_svc.ops.plain import experts_of_products
from engine_svc.quantization.base import Weights
from engine_svc.quantization.unquantized import Unquantized

_INT_MM_ROWS = 32  # CUDA's int8 product wants more than 16 rows


class Int8(Unquantized):
    """The parameters are those of weights as they are. Products are the C++ kernels', or torch's."""

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Product:
        """See QuantizationMethod.linear."""
        weight = weights["weight"]
        if isinstance(self.ops, NativeOps):
            kernels = self.ops.kernels
            return matrix_product(kernels, pack_int8(kernels, weight[None]), weight.shape, bias)
        return _plain_matrix(weight, bias)

    def experts(self, gate_up: Weights, down: Weights) -> ExpertsProduct:
        """See QuantizationMethod.experts."""
        first, second = gate_up["weight"], down["weight"]
        if isinstance(self.ops, NativeOps):
            kernels = self.ops.kernels
            return experts_product(kernels, pack_int8(kernels, first), pack_int8(kernels, second), second.shape)
        pairs = zip(first, second, strict=True)
        return experts_of_products(self.ops, [(_plain_matrix(up, None), _plain_matrix(out, None)) for up, out in pairs])


def quantize_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row to -127 … 127 of its greatest absolute value.

    Args:
        values: [rows, size], any floating-point type.

    Returns:
        int8 [rows, size], and float32 [rows], what 1 stands for.
    """
    wide = values.float()
    scale = wide.abs().amax(-1) / 127
    inverse = torch.where(scale > 0, 1 / scale, 0)
    return (wide * inverse[:, None]).round_().to(torch.int8), scale


def _plain_matrix(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    quantized, weight_scale = quantize_rows(weight)
    transposed = quantized.t()

    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        rows, scale = quantize_rows(hidden)
        padded_rows = F.pad(rows, (0, 0, 0, max(0, _INT_MM_ROWS - len(rows))))
        output = torch._int_mm(padded_rows, transposed)[: len(rows)].float() * scale[:, None] * weight_scale
        if bias is not None:
            output += bias.float()
        return output if wide else output.to(hidden.dtype)

    return product
