"""Dynamic W8A8: weights of 16 or 32 bits become int8 as they are loaded, and inputs as they come.

Symmetric, with a scale for each output of a weight and for each row of inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine_svc.native.library import Kernels
from engine_svc.ops.base import ExpertsProduct, Product
from engine_svc.ops.native import NativeOps
from engine_svc.ops.packing import experts_product, padded, padded_bias, pointer
from engine_svc.ops.plain import experts_of_products
from engine_svc.quantization.base import Weights
from engine_svc.quantization.unquantized import Unquantized

_INT_MM_ROWS = 32  # CUDA's int8 product wants more than 16 rows


class Int8(Unquantized):
    """The parameters are those of weights as they are. The C++ kernels take inputs 4 at a time; torch has the rest."""

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Product:
        """See QuantizationMethod.linear."""
        weight = weights["weight"]
        if (kernels := self._kernels(weight)) is not None:
            return _native_matrix(kernels, weight, bias)
        return _plain_matrix(weight, bias)

    def experts(self, gate_up: Weights, down: Weights) -> ExpertsProduct:
        """See QuantizationMethod.experts."""
        first, second = gate_up["weight"], down["weight"]
        if (kernels := self._kernels(first, second)) is not None:
            operands = (*_pack(kernels, first), *_pack(kernels, second))
            return experts_product(kernels.experts_int8, second.shape, operands)
        pairs = zip(first, second, strict=True)
        return experts_of_products(self.ops, [(_plain_matrix(up, None), _plain_matrix(out, None)) for up, out in pairs])

    def _kernels(self, *weights: torch.Tensor) -> Kernels | None:
        fits = all(weight.shape[-1] % 4 == 0 for weight in weights)
        return self.ops.kernels if fits and isinstance(self.ops, NativeOps) else None


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


class _Packed(NamedTuple):
    """Packed matrices: of each output, what 1 stands for, and the sum of its weights times 128.

    The kernel's inputs are unsigned, 128 too high: that sum is what it adds.
    """

    weights: torch.Tensor
    scale: torch.Tensor
    correction: torch.Tensor


def _pack(kernels: Kernels, weights: torch.Tensor) -> _Packed:
    """Quantizes and packs each of [count, outputs, size]."""
    count, outputs, size = weights.shape
    packed = torch.empty((count, padded(outputs), size), dtype=torch.int8)
    scales = torch.zeros((count, padded(outputs)))
    corrections = torch.zeros((count, padded(outputs)), dtype=torch.int32)
    for index, weight in enumerate(weights):
        quantized, scales[index, :outputs] = quantize_rows(weight)
        corrections[index, :outputs] = 128 * quantized.sum(1, dtype=torch.int32)
        kernels.pack_int8(quantized.data_ptr(), outputs, size, packed[index].data_ptr())
    return _Packed(packed, scales, corrections)


def _native_matrix(kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    outputs, size = weight.shape
    packed, scale, correction = _pack(kernels, weight[None])
    added = padded_bias(bias, outputs)
    kernel = kernels.matrix_int8

    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        rows = hidden.shape[0]
        output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else torch.bfloat16)
        scratch, input_scale = torch.empty((rows, size), dtype=torch.uint8), torch.empty(rows)
        kernel(
            hidden.data_ptr(), rows, hidden.stride(0), packed.data_ptr(), scale.data_ptr(),
            correction.data_ptr(), pointer(added), output.data_ptr(), outputs, size // 4,
            scratch.data_ptr(), input_scale.data_ptr(), wide, torch.get_num_threads(),
        )  # fmt: skip
        return output

    return product
