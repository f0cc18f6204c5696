"""The recurrent operations by Triton kernels: one launch each for any batch, and one or two more for prompts."""

from __future__ import annotations

from typing import ClassVar

import torch
import triton

from engine_svc.kernels import chunked_delta, chunked_scan
from engine_svc.kernels import recurrence as kernels
from engine_svc.kernels.chunked_scan import ChunkTiles, operands, padded
from engine_svc.kernels.convolution import TILE_CHANNELS, TILE_TOKENS, convolve_kernel
from engine_svc.kernels.overlap import begins_early
from engine_svc.kernels.recurrence import TILE_UNITS, WARPS, columns, shares
from engine_svc.recurrence.base import (
    MOST_TARGETS,
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

_ALL = 2**31 - 1  # more tokens than any sequence has


class TritonRecurrence(Recurrence):
    """See Recurrence."""

    # The most new tokens of sequences that are processed token by token; with more, they are processed in chunks.
    few: ClassVar[int] = 16

    def _few(self, sequences: StateMetadata) -> int:
        """Chunks have no states after each token."""
        return self.few if sequences.targets is None else max(self.few, MOST_TARGETS)

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
            state.sequences.targets, *_strides(inputs), gates.stride(0), channels, size,
            HAS_TARGETS=_has_targets(state), SIZE=triton.next_power_of_2(size), TILE_C=tile, num_warps=WARPS,
            launch_pdl=begins_early(),
        )  # fmt: skip
        return output

    def gated_units(self, inputs: UnitInputs, parameters: UnitParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_units."""
        output = inputs.hidden.new_empty(inputs.hidden.shape)
        channels = output.shape[1]
        kernels.units_kernel[len(state.sequences.slots), triton.cdiv(channels, TILE_UNITS)](
            *inputs, output, state.recurrent, parameters.rates, parameters.input_bias, parameters.decay_bias,
            *_whose(state.sequences), state.sequences.targets, *_strides(inputs), channels,
            HAS_TARGETS=_has_targets(state), TILE_C=TILE_UNITS, num_warps=WARPS, launch_pdl=begins_early(),
        )  # fmt: skip
        return output

    def scan_heads(self, inputs: ScanInputs, parameters: ScanParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.scan_heads."""
        _, heads, size, dim = state.recurrent.shape
        output, whose, count = inputs.hidden.new_empty(inputs.hidden.shape), state.sequences, len(state.sequences.slots)
        tile, has_bias, few = columns(size, dim), parameters.time_bias is not None, self._few(whose)
        arguments = (
            *inputs, output, state.recurrent, parameters.rates, parameters.skip, parameters.time_bias, *_whose(whose),
        )  # fmt: skip
        sizes = (
            *_strides(inputs), heads, heads // (inputs.writes.shape[1] // size), size, dim, *parameters.time_limits,
            few,
        )  # fmt: skip
        kernels.scan_heads_kernel[count, heads, triton.cdiv(dim, tile)](
            *arguments, whose.targets, *sizes, HAS_TARGETS=_has_targets(state), HAS_BIAS=has_bias,
            SIZE=triton.next_power_of_2(size), TILE_D=tile, num_warps=WARPS, launch_pdl=begins_early(),
        )  # fmt: skip
        if max(whose.query_lens_host) > few:
            tiles, form = _tiles(chunked_scan.TILES, output), operands(output.dtype)
            tile = tiles.columns_of(size, dim)
            chunked_scan.chunked_scan_kernel[count, heads, triton.cdiv(dim, tile)](
                *arguments, *sizes, HAS_BIAS=has_bias, SIZE=padded(size), TILE_D=tile, CHUNK=tiles.chunk,
                OPERAND=form.loaded, PRECISION=form.precision, num_warps=tiles.warps, num_stages=tiles.stages,
                launch_pdl=begins_early(),
            )  # fmt: skip
        return output

    def delta_rule(self, inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.delta_rule."""
        _, heads, size, dim = state.recurrent.shape
        output, whose = inputs.value.new_empty(inputs.value.shape), state.sequences
        by_key = inputs.time_steps.shape[1] != heads
        few, tile = _ALL if by_key else self._few(whose), columns(size, dim)
        kernels.delta_kernel[len(whose.slots), heads, triton.cdiv(dim, tile)](
            *inputs, output, state.recurrent, parameters.rates, parameters.time_bias, *_whose(whose), whose.targets,
            *_strides(inputs), heads, heads // (inputs.key.shape[1] // size), size, dim, parameters.strongest,
            size**-0.5, few, HAS_TARGETS=_has_targets(state), BY_KEY=by_key, SIZE=triton.next_power_of_2(size),
            TILE_D=tile, num_warps=WARPS, launch_pdl=begins_early(),
        )  # fmt: skip
        if max(whose.query_lens_host) > few:
            _chunked_delta(inputs, parameters, state, few, output)
        return output

    def gated_norm(self, hidden: torch.Tensor, gates: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        """See Recurrence.gated_norm."""
        output = hidden.new_empty(hidden.shape)
        size = hidden.shape[1] // norm.groups
        tile = kernels.norm_tile(size)
        kernels.gated_norm_kernel[(triton.cdiv(len(hidden), tile) * norm.groups,)](
            hidden, gates, output, norm.weight, len(hidden), hidden.stride(0), gates.stride(0), size, norm.epsilon,
            GROUPS=norm.groups, GATES_FIRST=norm.gates_first, IS_SILU=norm.gate == "silu", TILE_T=tile,
            SIZE=triton.next_power_of_2(size), launch_pdl=begins_early(),
        )  # fmt: skip
        return output


class InvariantTritonRecurrence(TritonRecurrence):
    """TritonRecurrence with all sequences processed token by token, however many new tokens they have."""

    batch_invariant = True
    few = _ALL


def _chunked_delta(
    inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState, few: int, output: torch.Tensor
) -> None:
    """The gated delta rule for sequences with more than `few` new tokens."""
    _, heads, size, dim = state.recurrent.shape
    tiles, form = _tiles(chunked_delta.TILES, output), operands(output.dtype)
    count, tokens = len(state.sequences.slots), len(output)
    sharing, tile = heads // (inputs.key.shape[1] // size), tiles.columns_of(size, dim)
    solve, scores = output.new_empty((2, tokens, heads, tiles.chunk), dtype=form.stored)
    factors = output.new_empty((4, tokens, heads), dtype=torch.float32)
    query, key, value, steps, strengths = inputs
    chunked_delta.delta_chunks_kernel[count, heads, shares(state.sequences.query_lens_host, tiles.chunk, heads)](
        query, key, steps, strengths, solve, scores, factors, parameters.rates, parameters.time_bias,
        *_whose(state.sequences), *_strides((query, key, steps, strengths)), tokens, heads, sharing, size,
        parameters.strongest, size**-0.5, few, SIZE=padded(size), CHUNK=tiles.chunk, OPERAND=form.loaded,
        PRECISION=form.precision, num_warps=chunked_delta.INVERSE_WARPS, num_stages=1, launch_pdl=begins_early(),
    )  # fmt: skip
    chunked_delta.chunked_delta_kernel[count, heads, triton.cdiv(dim, tile)](
        query, key, value, solve, scores, factors, output, state.recurrent, *_whose(state.sequences),
        *_strides((query, key, value)), tokens, heads, sharing, size, dim, few, SIZE=padded(size), TILE_D=tile,
        CHUNK=tiles.chunk, OPERAND=form.loaded, PRECISION=form.precision, num_warps=tiles.warps,
        num_stages=tiles.stages, launch_pdl=begins_early(),
    )  # fmt: skip


def _tiles(tiles: ChunkTiles, output: torch.Tensor) -> ChunkTiles:
    capability = torch.cuda.get_device_capability(output.device) if output.is_cuda else (8, 0)
    return tiles.of(output.dtype, capability)


def _convolved(inputs: torch.Tensor, convolution: Convolution, state: LayerState, is_gated: bool) -> torch.Tensor:
    taps, channels = convolution.weight.shape
    output = inputs.new_empty(len(inputs), channels)
    tiles = triton.cdiv(channels, TILE_CHANNELS)
    count = shares(state.sequences.query_lens_host, TILE_TOKENS, tiles)
    convolve_kernel[len(state.sequences.slots), tiles, count](
        inputs, output, state.convolution, convolution.weight, convolution.bias, *_whose(state.sequences),
        state.sequences.targets, inputs.stride(0), channels, TAPS=taps,
        TARGETS=MOST_TARGETS if _has_targets(state) else 0, HAS_BIAS=convolution.bias is not None,
        ACTIVATES=convolution.activates and not is_gated, GATED=is_gated, TILE_T=TILE_TOKENS, TILE_C=TILE_CHANNELS,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return output


def _whose(sequences: StateMetadata) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequences' starts and slots, and whether they are fresh, as uint8: kernels do not read booleans."""
    return sequences.query_start_loc, sequences.slots, sequences.is_fresh.view(torch.uint8)


def _has_targets(state: LayerState) -> bool:
    return state.sequences.targets is not None


def _strides(inputs: tuple[torch.Tensor, ...]) -> list[int]:
    """The strides between tokens."""
    return [each.stride(0) for each in inputs]
