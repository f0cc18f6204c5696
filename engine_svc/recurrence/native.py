"""The recurrent operations by the C++ kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from engine_svc.native.library import TYPES, Kernels
from engine_svc.ops.packing import pointer
from engine_svc.recurrence.base import (
    Convolution,
    DeltaInputs,
    DeltaParameters,
    GatedNorm,
    LayerState,
    Recurrence,
    ScanInputs,
    ScanParameters,
    UnitInputs,
    UnitParameters,
)


class _Rows(ctypes.Structure):
    """As in recurrence.cpp."""

    _fields_ = (("values", ctypes.c_void_p), ("stride", ctypes.c_int64))


class _Sequences(ctypes.Structure):
    """As in recurrence.cpp."""

    _fields_ = (
        ("starts", ctypes.c_void_p), ("slots", ctypes.c_void_p), ("is_fresh", ctypes.c_void_p),
        ("targets", ctypes.c_void_p), ("count", ctypes.c_int64),
    )  # fmt: skip


def _rows(tensor: torch.Tensor) -> Any:
    """[rows, values], any stride between rows."""
    return ctypes.byref(_Rows(tensor.data_ptr(), tensor.stride(0)))


def _sequences(state: LayerState) -> Any:
    of = state.sequences
    return ctypes.byref(
        _Sequences(*map(pointer, (of.query_start_loc, of.slots, of.is_fresh, of.targets)), len(of.slots))
    )


class NativeRecurrence(Recurrence):
    """See Recurrence. Inputs and states may be float32, bfloat16 and float16."""

    batch_invariant = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """See Recurrence.convolve."""
        return self._convolve(self._kernels.convolve, inputs, convolution, state, int(convolution.activates))

    def gated_convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_convolve."""
        return self._convolve(self._kernels.gated_convolve, inputs, convolution, state)

    def _convolve(
        self, kernel: Callable[..., None], inputs: torch.Tensor, convolution: Convolution, state: LayerState, *more: int
    ) -> torch.Tensor:
        held, bias = state.convolution, convolution.bias
        taps, channels = convolution.weight.shape
        output = inputs.new_empty((len(inputs), channels))
        kernel(
            TYPES[inputs.dtype], TYPES[held.dtype], _rows(inputs), convolution.weight.data_ptr(),
            pointer(bias), held.data_ptr(), _sequences(state), channels, taps,
            output.data_ptr(), *more,
        )  # fmt: skip
        return output

    def gated_units(self, inputs: UnitInputs, parameters: UnitParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_units."""
        output = inputs.hidden.new_empty(inputs.hidden.shape)
        self._kernels.gated_units(
            *self._types(output, state), *map(_rows, inputs), parameters.input_bias.data_ptr(),
            parameters.decay_bias.data_ptr(), parameters.rates.data_ptr(), state.recurrent.data_ptr(),
            _sequences(state), output.shape[1], output.data_ptr(),
        )  # fmt: skip
        return output

    def scan_channels(
        self, inputs: ScanInputs, gates: torch.Tensor, parameters: ScanParameters, state: LayerState
    ) -> torch.Tensor:
        """See Recurrence.scan_channels."""
        _, size, channels = state.recurrent.shape
        output = gates.new_empty(gates.shape)
        self._kernels.scan_channels(
            *self._types(output, state), *map(_rows, inputs), _rows(gates), parameters.rates.data_ptr(),
            parameters.skip.data_ptr(), state.recurrent.data_ptr(), _sequences(state), channels, size,
            output.data_ptr(),
        )  # fmt: skip
        return output

    def scan_heads(self, inputs: ScanInputs, parameters: ScanParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.scan_heads."""
        _, heads, size, dim = state.recurrent.shape
        bias = parameters.time_bias
        output = inputs.hidden.new_empty(inputs.hidden.shape)
        self._kernels.scan_heads(
            *self._types(output, state), *map(_rows, inputs), parameters.rates.data_ptr(), parameters.skip.data_ptr(),
            pointer(bias), *parameters.time_limits, state.recurrent.data_ptr(),
            _sequences(state), heads, inputs.writes.shape[1] // size, size, dim, output.data_ptr(),
        )  # fmt: skip
        return output

    def delta_rule(self, inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.delta_rule."""
        _, heads, size, dim = state.recurrent.shape
        output = inputs.value.new_empty(inputs.value.shape)
        self._kernels.delta_rule(
            *self._types(output, state), *map(_rows, inputs), parameters.rates.data_ptr(),
            parameters.time_bias.data_ptr(), len(parameters.time_bias) > heads, parameters.strongest,
            state.recurrent.data_ptr(), _sequences(state), inputs.key.shape[1] // size, heads, size, dim,
            output.data_ptr(),
        )  # fmt: skip
        return output

    def gated_norm(self, hidden: torch.Tensor, gates: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        """See Recurrence.gated_norm."""
        rows, size = hidden.shape
        output = hidden.new_empty(hidden.shape)
        self._kernels.gated_norm(
            TYPES[hidden.dtype], _rows(hidden), _rows(gates), norm.weight.data_ptr(), norm.epsilon, norm.gates_first,
            norm.gate == "sigmoid", rows, norm.groups, size // norm.groups, output.data_ptr(),
        )  # fmt: skip
        return output

    def _types(self, output: torch.Tensor, state: LayerState) -> tuple[int, int]:
        return TYPES[output.dtype], TYPES[state.recurrent.dtype]
