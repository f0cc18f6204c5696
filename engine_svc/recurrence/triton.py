"""The recurrent operations by the kernels of engine_svc/kernels/recurrence.py: one launch each, for any batch."""

from __future__ import annotations

from typing import ClassVar

import torch
import triton

from engine_svc.kernels import recurrence as kernels
from engine_svc.kernels.recurrence import TILE_CHANNELS, TILE_TOKENS, TILE_UNITS, WARPS, columns
from engine_svc.recurrence.base import (
    Convolution,
    DeltaInputs,
    DeltaParameters,
    GatedNorm,
    LayerState,
    Recurrence,
    ScanInputs,
    ScanParameters,
    StateMetadata,
    UnitInputs,
    UnitParameters,
)


class TritonRecurrence(Recurrence):
    """See Recurrence."""

    batch_invariant: ClassVar[bool] = True

    def convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """See Recurrence.convolve."""
        return _convolved(inputs, convolution, state, is_gated=False)

    def gated_convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_convolve."""
        return _convolved(inputs, convolution, state, is_gated=True)

    def scan_channels(
        self, inputs: ScanInputs, gates: torch.Tensor, parameters: ScanParameters, state: LayerState
    ) -> torch.Tensor:
        """See Recurrence.scan_channels."""
        size, channels = parameters.rates.shape
        output = inputs.hidden.new_empty(inputs.hidden.shape)
        tile = columns(size, channels)
        kernels.scan_channels_kernel[len(state.sequences.slots), triton.cdiv(channels, tile)](
            *inputs, gates, output, state.recurrent, parameters.rates, parameters.skip, *_whose(state.sequences),
            *_strides(inputs), gates.stride(0), channels, size, SIZE=triton.next_power_of_2(size), TILE_C=tile,
            num_warps=WARPS,
        )  # fmt: skip
        return output

    def gated_units(self, inputs: UnitInputs, parameters: UnitParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_units."""
        output = inputs.hidden.new_empty(inputs.hidden.shape)
        channels = output.shape[1]
        kernels.units_kernel[len(state.sequences.slots), triton.cdiv(channels, TILE_UNITS)](
            *inputs, output, state.recurrent, parameters.rates, parameters.input_bias, parameters.decay_bias,
            *_whose(state.sequences), *_strides(inputs), channels, TILE_C=TILE_UNITS, num_warps=WARPS,
        )  # fmt: skip
        return output

    def scan_heads(self, inputs: ScanInputs, parameters: ScanParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.scan_heads."""
        _, heads, size, dim = state.recurrent.shape
        output = inputs.hidden.new_empty(inputs.hidden.shape)
        sharing, tile = heads // (inputs.writes.shape[1] // size), columns(size, dim)
        kernels.scan_heads_kernel[len(state.sequences.slots), heads, triton.cdiv(dim, tile)](
            *inputs, output, state.recurrent, parameters.rates, parameters.skip, parameters.time_bias,
            *_whose(state.sequences), *_strides(inputs), heads, sharing, size, dim, *parameters.time_limits,
            HAS_BIAS=parameters.time_bias is not None, SIZE=triton.next_power_of_2(size), TILE_D=tile,
            num_warps=WARPS,
        )  # fmt: skip
        return output

    def delta_rule(self, inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.delta_rule."""
        _, heads, size, dim = state.recurrent.shape
        output = inputs.value.new_empty(inputs.value.shape)
        sharing, tile = heads // (inputs.key.shape[1] // size), columns(size, dim)
        kernels.delta_kernel[len(state.sequences.slots), heads, triton.cdiv(dim, tile)](
            *inputs, output, state.recurrent, parameters.rates, parameters.time_bias, *_whose(state.sequences),
            *_strides(inputs), heads, sharing, size, dim, parameters.strongest, size**-0.5,
            BY_KEY=inputs.time_steps.shape[1] != heads, SIZE=triton.next_power_of_2(size), TILE_D=tile,
            num_warps=WARPS,
        )  # fmt: skip
        return output

    def gated_norm(self, hidden: torch.Tensor, gates: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        """See Recurrence.gated_norm."""
        output = hidden.new_empty(hidden.shape)
        size = hidden.shape[1] // norm.groups
        kernels.gated_norm_kernel[len(hidden), norm.groups](
            hidden, gates, output, norm.weight, hidden.stride(0), gates.stride(0), size, norm.epsilon,
            GROUPS=norm.groups, GATES_FIRST=norm.gates_first, IS_SILU=norm.gate == "silu",
            SIZE=triton.next_power_of_2(size),
        )  # fmt: skip
        return output


def _convolved(inputs: torch.Tensor, convolution: Convolution, state: LayerState, is_gated: bool) -> torch.Tensor:
    taps, channels = convolution.weight.shape
    output = inputs.new_empty(len(inputs), channels)
    kernels.convolve_kernel[len(state.sequences.slots), triton.cdiv(channels, TILE_CHANNELS)](
        inputs, output, state.convolution, convolution.weight, convolution.bias, *_whose(state.sequences),
        inputs.stride(0), channels, TAPS=taps, HAS_BIAS=convolution.bias is not None,
        ACTIVATES=convolution.activates and not is_gated, GATED=is_gated, TILE_T=TILE_TOKENS, TILE_C=TILE_CHANNELS,
    )  # fmt: skip
    return output


def _whose(sequences: StateMetadata) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequences' starts and slots, and whether they are fresh, as uint8: kernels do not read booleans."""
    return sequences.query_start_loc, sequences.slots, sequences.is_fresh.view(torch.uint8)


def _strides(inputs: tuple[torch.Tensor, ...]) -> list[int]:
    """The strides between tokens."""
    return [each.stride(0) for each in inputs]
