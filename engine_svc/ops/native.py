"""The operations by the C++ kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine_svc.native.library import GATES, SCORINGS, TYPES, Kernels
from engine_svc.ops.base import (
    TILE_ROWS,
    Activation,
    Affine,
    ExpertsForm,
    ExpertsProduct,
    HeadNorms,
    HeadsProduct,
    MatrixProduct,
    Ops,
    PlainActivation,
    Routing,
    RowTiles,
    of_present,
)
from engine_svc.ops.grids import INT4
from engine_svc.ops.packing import (
    PackedWeight,
    experts_product,
    gate_arguments,
    matrix_product,
    pack,
    pack_compressed,
    pack_plain,
    pointer,
)
from engine_svc.ops.packing_coded import pack_coded, packable
from engine_svc.ops.weights import CodedWeight, Int8Weight, Weight


class NativeOps(Ops):
    """See Ops. Takes float32, bfloat16 and float16, on every instruction set level."""

    batch_invariant = True

    def __init__(self, kernels: Kernels, dtype: torch.dtype = torch.bfloat16) -> None:
        """
        Args:
            dtype: type of the inputs of products with coded weights.
        """
        self.kernels = kernels
        self._dtype = dtype

    def matrix(self, weight: Weight, bias: torch.Tensor | None) -> MatrixProduct:
        """See Ops.matrix."""
        return matrix_product(self.kernels, self._pack(weight), weight.shape, bias)

    def _pack(self, weight: Weight) -> PackedWeight:
        """Packs a weight; one with codes that the kernels do not take is dequantized first."""
        if isinstance(weight, torch.Tensor) and (compressed := pack_compressed(self.kernels, weight)):
            return compressed
        if not isinstance(weight, CodedWeight):
            return pack(self.kernels, weight)
        if packable(weight):
            return pack_coded(self.kernels, weight, self._dtype)
        return self._pack(weight.wide(self._dtype))

    def quantize_rows(self, values: torch.Tensor) -> Int8Weight:
        """See Ops.quantize_rows."""
        lines = values.reshape(-1, values.shape[-1])
        quantized = Int8Weight(torch.empty(values.shape, dtype=torch.int8), torch.empty(values.shape[:-1]))
        self.kernels.quantize_rows(
            TYPES[values.dtype], lines.data_ptr(), *lines.shape, quantized.values.data_ptr(), quantized.scale.data_ptr()
        )
        return quantized

    def quantize_groups(self, values: torch.Tensor, group: int) -> CodedWeight:
        """See Ops.quantize_groups."""
        *many, size = values.shape
        lines, group = values.reshape(-1, size), min(group, size)
        codes = torch.empty(values.shape, dtype=torch.uint8)
        scale = torch.empty((*many, -(-size // group)))
        self.kernels.quantize_groups(
            TYPES[values.dtype], lines.data_ptr(), *lines.shape, group, codes.data_ptr(), scale.data_ptr()
        )
        return CodedWeight(INT4, codes, scale, None, group)

    def shrink(
        self, hidden: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, tiles: RowTiles, *, sharing: int = 1
    ) -> torch.Tensor:
        """See Ops.shrink."""
        sums = hidden.new_empty((len(tiles.groups), TILE_ROWS, *matrices.shape[1:3]), dtype=torch.float32)
        self.kernels.shrink(
            TYPES[hidden.dtype], TYPES[matrices.dtype], hidden.data_ptr(), hidden.stride(0), matrices.data_ptr(),
            ranks.data_ptr(), *matrices.shape[1:], tiles.rows.data_ptr(), tiles.groups.data_ptr(), len(tiles.groups),
            sharing, sums.data_ptr(),
        )  # fmt: skip
        return sums

    def expand(
        self, sums: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, tiles: RowTiles,
        output: torch.Tensor, *, sharing: int = 1,
    ) -> None:  # fmt: skip
        """See Ops.expand."""
        self.kernels.expand(
            TYPES[output.dtype], TYPES[matrices.dtype], sums.data_ptr(), matrices.data_ptr(), ranks.data_ptr(),
            starts.data_ptr(), *sums.shape[2:], tiles.rows.data_ptr(), tiles.groups.data_ptr(), len(tiles.groups),
            sharing, output.data_ptr(), output.stride(0),
        )  # fmt: skip

    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """See Ops.head_matrices."""
        heads, outputs, size = weight.shape
        packed = pack_plain(self.kernels, weight).weights

        def product(hidden: torch.Tensor, output: torch.Tensor) -> None:
            self.kernels.head_matrices(
                TYPES[hidden.dtype], hidden.data_ptr(), *hidden.stride()[:2], packed.data_ptr(), output.data_ptr(),
                *output.stride()[:2], len(hidden), heads, size, outputs,
            )  # fmt: skip

        return product

    def experts(self, gate_up: Weight, down: Weight, form: ExpertsForm = ExpertsForm()) -> ExpertsProduct:
        """See Ops.experts."""
        return experts_product(self.kernels, self._pack(gate_up), self._pack(down), down.shape, form)

    def choose_experts(
        self, logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing, present: torch.Tensor | None = None,
        factors: torch.Tensor | None = None, into: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """See Ops.choose_experts."""
        if present is not None:
            weights, expert_ids = self.choose_experts(logits, bias, routing, factors=factors)
            expert_ids = of_present(expert_ids, present)
            return weights, expert_ids if into is None else into.copy_(expert_ids)
        tokens, experts = logits.shape
        weights = logits.new_empty((tokens, routing.experts_per_token))
        expert_ids = logits.new_empty(weights.shape, dtype=torch.int64) if into is None else into
        self.kernels.choose_experts(
            logits.data_ptr(), pointer(bias), pointer(factors), tokens, experts, routing.experts_per_token,
            routing.num_groups, routing.chosen_groups, routing.renormalize, routing.scale, SCORINGS[routing.scoring],
            routing.near, weights.data_ptr(), expert_ids.data_ptr(),
        )  # fmt: skip
        return weights, expert_ids

    def take_rows(
        self, matrix: torch.Tensor, indices: torch.Tensor, scale: float = 1.0, first: int | None = None
    ) -> torch.Tensor:
        """See Ops.take_rows."""
        output = matrix.new_empty((len(indices), *matrix.shape[1:]))
        self.kernels.take_rows(
            TYPES[matrix.dtype], matrix.data_ptr(), indices.data_ptr(), len(indices), first or 0, len(matrix),
            math.prod(matrix.shape[1:]), matrix.stride(0), scale, output.data_ptr(),
        )  # fmt: skip
        return output

    def mean_rows(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """See Ops.mean_rows."""
        count, size = len(starts) - 1, hidden.shape[1]
        output = hidden.new_empty((count, size), dtype=torch.float32)
        self.kernels.mean_rows(
            TYPES[hidden.dtype], hidden.data_ptr(), size, starts.data_ptr(), count, output.data_ptr()
        )
        return output

    def zeros_like(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Ops.zeros_like."""
        output = hidden.new_empty(hidden.shape)
        self.kernels.clear(output.data_ptr(), len(output), output.stride(0) * output.itemsize)
        return output

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Ops.join."""
        widths = [part.shape[1] * part.shape[2] for part in parts]
        output = parts[0].new_empty((len(parts[0]), sum(widths)))
        for part, place in zip(parts, output.split(widths, dim=1), strict=True):
            unit = part.itemsize
            self.kernels.copy_parts(
                part.data_ptr(), part.stride(0) * unit, part.stride(1) * unit, place.data_ptr(),
                place.stride(0) * unit, len(part), part.shape[1], part.shape[2] * unit,
            )  # fmt: skip
        return output

    def add(self, total: torch.Tensor, values: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """See Ops.add."""
        self.kernels.add(TYPES[total.dtype], total.data_ptr(), values.data_ptr(), pointer(gates), *total.shape)
        return total

    def gate(self, values: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """See Ops.gate."""
        self.kernels.gate(TYPES[values.dtype], values.data_ptr(), gates.data_ptr(), *values.shape)
        return values

    def clip(self, values: torch.Tensor, most: float) -> torch.Tensor:
        """See Ops.clip."""
        self.kernels.clip(TYPES[values.dtype], values.data_ptr(), *values.shape, most)
        return values

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        """See Ops.softcap."""
        self.kernels.softcap(logits.data_ptr(), logits.stride(0), *logits.shape, cap)
        return logits

    def scale(self, values: torch.Tensor, factor: float) -> torch.Tensor:
        """See Ops.scale."""
        self.kernels.scale(TYPES[values.dtype], values.data_ptr(), values.stride(0), *values.shape, factor)
        return values

    def scale_rows(self, values: torch.Tensor, factors: torch.Tensor) -> None:
        """See Ops.scale_rows."""
        self.kernels.scale_rows(
            TYPES[values.dtype], values.data_ptr(), values.stride(0), factors.data_ptr(), *values.shape
        )

    def rms_norm(
        self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops.rms_norm."""
        output = hidden.new_empty(hidden.shape) if output is None else output
        self._norm(hidden, None, weight, epsilon, output)
        return output

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_rms_norm."""
        output = hidden.new_empty(hidden.shape)
        self._norm(hidden, residual, weight, epsilon, output)
        return output

    def _norm(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
        output: torch.Tensor,
    ) -> None:
        self.kernels.rms_norm(
            TYPES[hidden.dtype], hidden.data_ptr(), hidden.stride(-2), pointer(residual), weight.data_ptr(),
            output.data_ptr(), output.stride(-2), hidden.numel() // weight.shape[0], weight.shape[0], epsilon,
        )  # fmt: skip

    def layer_norm(
        self, hidden: torch.Tensor, affine: Affine, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops.layer_norm."""
        output = hidden.new_empty(hidden.shape) if output is None else output
        self._layer_norm(hidden, None, affine, epsilon, output)
        return output

    def add_layer_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, affine: Affine, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_layer_norm."""
        output = hidden.new_empty(hidden.shape)
        self._layer_norm(hidden, residual, affine, epsilon, output)
        return output

    def _layer_norm(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        affine: Affine,
        epsilon: float,
        output: torch.Tensor,
    ) -> None:
        size = affine.weight.shape[0]
        self.kernels.layer_norm(
            TYPES[hidden.dtype], hidden.data_ptr(), hidden.stride(-2), pointer(residual), affine.weight.data_ptr(),
            pointer(affine.bias), output.data_ptr(), output.stride(-2), hidden.numel() // size, size, epsilon,
        )  # fmt: skip

    def rotate(
        self,
        heads: torch.Tensor,
        table_rows: torch.Tensor,
        num_query: int,
        norms: HeadNorms | None,
        interleaved: bool = False,
    ) -> torch.Tensor:
        """See Ops.rotate."""
        tokens, count, dim = heads.shape
        query, key, epsilon = (
            (norms.query.data_ptr(), norms.key.data_ptr(), norms.epsilon) if norms else (None, None, 0.0)
        )
        self.kernels.rotate(
            TYPES[heads.dtype], heads.data_ptr(), heads.stride(0), table_rows.data_ptr(), query, key, epsilon,
            tokens, num_query, count - num_query, dim, 2 * table_rows.shape[-1], interleaved,
        )  # fmt: skip
        return heads

    def rotate_pairs(self, pairs: torch.Tensor, table_rows: torch.Tensor, output: torch.Tensor) -> None:
        """See Ops.rotate_pairs."""
        self.kernels.rotate_pairs(
            TYPES[pairs.dtype], pairs.data_ptr(), *pairs.stride()[:2], table_rows.data_ptr(), output.data_ptr(),
            *output.stride()[:2], *pairs.shape,
        )  # fmt: skip

    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops.activate_and_multiply."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty((rows, size))
        self.kernels.activate_and_multiply(
            TYPES[gate_up.dtype], gate_up.data_ptr(), output.data_ptr(), rows, size, *gate_arguments(activation)
        )
        return output

    def activate(self, values: torch.Tensor, activation: PlainActivation) -> torch.Tensor:
        """See Ops.activate."""
        self.kernels.activate(TYPES[values.dtype], values.data_ptr(), *values.shape, GATES[activation])
        return values

    def xielu(self, values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """See Ops.xielu."""
        self.kernels.xielu(TYPES[values.dtype], values.data_ptr(), *values.shape, numbers.data_ptr())
        return values

    def stream_weights(self, scores: torch.Tensor, count: int, iterations: int, epsilon: float) -> torch.Tensor:
        """See Ops.stream_weights."""
        self.kernels.stream_weights(scores.data_ptr(), len(scores), count, iterations, epsilon)
        return scores
