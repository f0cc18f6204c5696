"""The C++ kernels, for bfloat16 on a CPU with AVX512-BF16 and VNNI."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine_svc.native.library import Kernels
from engine_svc.ops.base import Activation, ExpertsProduct, HeadNorms, Product
from engine_svc.ops.int8 import quantize_rows
from engine_svc.ops.plain import PlainOps

_PANEL = 64  # outputs that are packed together, as in matrix.h


class _Int8(NamedTuple):
    """Packed matrices: of each output, what 1 stands for, and the sum of its weights times 128.

    The kernel's inputs are unsigned, 128 too high: that sum is what it adds.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    correction: torch.Tensor


class NativeOps(PlainOps):
    """A product with an odd input size falls back to torch: the kernels take 2 (int8: 4) values at a time."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.matrix."""
        outputs, size = weight.shape
        if size % 2:
            return super().matrix(weight, bias)
        packed = self._pack_bf16(weight[None])
        padded_bias = _pad(bias, outputs)
        kernel = self._kernels.matrix_bf16

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = hidden.new_empty((hidden.shape[0], outputs), dtype=torch.float32 if wide else torch.bfloat16)
            kernel(
                hidden.data_ptr(), hidden.shape[0], hidden.stride(0), packed.data_ptr(), _pointer(padded_bias),
                output.data_ptr(), outputs, size // 2, wide, torch.get_num_threads(),
            )  # fmt: skip
            return output

        return product

    def int8_matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """See Ops.int8_matrix."""
        outputs, size = weight.shape
        if size % 4:
            return super().int8_matrix(weight, bias)
        packed, padded_scale, correction = self._pack_int8(weight[None])
        padded_bias = _pad(bias, outputs)
        kernel = self._kernels.matrix_int8

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            rows = hidden.shape[0]
            output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else torch.bfloat16)
            scratch, input_scale = torch.empty((rows, size), dtype=torch.uint8), torch.empty(rows)
            kernel(
                hidden.data_ptr(), rows, hidden.stride(0), packed.data_ptr(), padded_scale.data_ptr(),
                correction.data_ptr(), _pointer(padded_bias), output.data_ptr(), outputs, size // 4,
                scratch.data_ptr(), input_scale.data_ptr(), wide, torch.get_num_threads(),
            )  # fmt: skip
            return output

        return product

    def _pack_bf16(self, weights: torch.Tensor) -> torch.Tensor:
        """Packs each of [count, outputs, size]."""
        count, outputs, size = weights.shape
        packed = torch.empty((count, _padded(outputs), size), dtype=torch.bfloat16)
        for weight, target in zip(weights, packed, strict=True):
            self._kernels.pack_bf16(weight.data_ptr(), outputs, size, target.data_ptr())
        return packed

    def _pack_int8(self, weights: torch.Tensor) -> _Int8:
        """Quantizes and packs each of [count, outputs, size]."""
        count, outputs, size = weights.shape
        packed = torch.empty((count, _padded(outputs), size), dtype=torch.int8)
        scales = torch.zeros((count, _padded(outputs)))
        corrections = torch.zeros((count, _padded(outputs)), dtype=torch.int32)
        for index, weight in enumerate(weights):
            quantized, scales[index, :outputs] = quantize_rows(weight)
            corrections[index, :outputs] = 128 * quantized.sum(1, dtype=torch.int32)
            self._kernels.pack_int8(quantized.data_ptr(), outputs, size, packed[index].data_ptr())
        return _Int8(packed, scales, corrections)

    def experts(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertsProduct:
        """See Ops.experts."""
        if gate_up.shape[2] % 2 or down.shape[2] % 2:
            return super().experts(gate_up, down)
        return self._native_experts(
            self._kernels.experts_bf16, down.shape, (self._pack_bf16(gate_up), self._pack_bf16(down))
        )

    def int8_experts(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertsProduct:
        """See Ops.int8_experts."""
        if gate_up.shape[2] % 4 or down.shape[2] % 4:
            return super().int8_experts(gate_up, down)
        return self._native_experts(
            self._kernels.experts_int8, down.shape, (*self._pack_int8(gate_up), *self._pack_int8(down))
        )

    def _native_experts(
        self, kernel: Callable[..., None], shape: torch.Size, operands: tuple[torch.Tensor, ...]
    ) -> ExpertsProduct:
        count, size, inner = shape

        def product(hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
            output = torch.empty_like(hidden)
            kernel(
                hidden.data_ptr(), hidden.shape[0], hidden.stride(0), expert_ids.data_ptr(), weights.data_ptr(),
                weights.shape[1], count, *(operand.data_ptr() for operand in operands), output.data_ptr(), size,
                inner, torch.get_num_threads(),
            )  # fmt: skip
            return output

        return product

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
        self._kernels.rms_norm(
            hidden.data_ptr(), _pointer(residual), weight.data_ptr(), output.data_ptr(),
            hidden.numel() // weight.shape[0], weight.shape[0], epsilon, torch.get_num_threads(),
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
        self._kernels.rotate(
            heads.data_ptr(), heads.stride(0), table_rows.data_ptr(), query, key, epsilon, tokens, num_query,
            count - num_query, dim, 2 * table_rows.shape[-1], torch.get_num_threads(),
        )  # fmt: skip
        return heads

    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops.activate_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty((rows, size))
        self._kernels.activate_and_multiply(
            gate_up.data_ptr(), output.data_ptr(), rows, size, activation == "gelu_tanh", torch.get_num_threads()
        )
        return output


def _padded(outputs: int) -> int:
    return -(-outputs // _PANEL) * _PANEL


def _pad(values: torch.Tensor | None, outputs: int) -> torch.Tensor | None:
    return None if values is None else F.pad(values.float(), (0, _padded(outputs) - outputs))


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
