"""The operations on a GPU, or in Triton's interpreter: Triton kernels around matrix products by cuBLAS.

cuBLAS chooses a kernel by the number of rows, and each kernel sums in its own order. Where a row's result must not
depend on that number, the matrix products are Triton kernels too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from triton import next_power_of_2

from engine_svc.kernels import activation as activation_kernels
from engine_svc.kernels import low_rank
from engine_svc.kernels.activation import NamedActivation
from engine_svc.kernels.coded import FEW_ROWS, PackedCodes, coded_product, dequantized, grouped_coded_product
from engine_svc.kernels.experts import (
    MANY_ROWS,
    MOST_ROWS,
    TILE_M,
    SortedRows,
    add_choices,
    grouped_product,
    sort_by_expert,
    tile_rows,
)
from engine_svc.kernels.int8 import int8_product
from engine_svc.kernels.matrix import product as fixed_product
from engine_svc.kernels.norm import rms_norm
from engine_svc.kernels.rotary import rotate, rotate_pairs
from engine_svc.kernels.routing import choose_experts
from engine_svc.kernels.single_row import Norm, most_rows, single_row_product
from engine_svc.kernels.single_row_coded import MOST_ROWS as MOST_CODED_ROWS
from engine_svc.kernels.single_row_coded import coded_row_product, takes_rows
from engine_svc.kernels.single_row_experts import Stack, single_row_experts
from engine_svc.kernels.streams import stream_weights
from engine_svc.ops.base import (
    Activation,
    ClampedSwish,
    ClippedSilu,
    ExpertAdapters,
    ExpertsForm,
    ExpertsProduct,
    HeadNorms,
    HeadsProduct,
    LowRankMatrices,
    MatrixProduct,
    PlainActivation,
    Routing,
    RowTiles,
    activate,
)
from engine_svc.ops.grids import INT8
from engine_svc.ops.packing_triton import ROW_ALIGNMENT, pack_codes, pack_int8, packed_rows
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight, Int8Weight, Weight, tensors_of

_MOST_WIDE_BYTES = 2 << 30  # room for a stack of dequantized experts


class TritonOps(PlainOps):
    """See Ops."""

    product_rows: ClassVar[Sequence[int]] = (64, 32, 16)

    def matrix(self, weight: Weight, bias: torch.Tensor | None) -> MatrixProduct:
        """See Ops.matrix."""
        if isinstance(weight, Int8Weight):
            return self._int8_matrix(weight, bias)
        if isinstance(weight, torch.Tensor) and weight.stride(1) == 1:
            return _with_rows(super().matrix(weight, bias), _SingleRow(single_row_product, weight, bias))
        if isinstance(weight, CodedWeight):
            return self._coded_matrix(weight, bias)
        return super().matrix(weight, bias)

    def _int8_matrix(self, weight: Int8Weight, bias: torch.Tensor | None) -> MatrixProduct:
        packed = pack_int8(weight)

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            return int8_product(hidden, packed.codes[0].view(torch.int8), packed.scale[0, :, 0], bias, wide)

        many = MatrixProduct(product, packed.held())
        if self.batch_invariant or weight.shape[-1] % ROW_ALIGNMENT:
            return many
        return _with_rows(many, _SingleRow(coded_row_product, packed, bias))

    def _coded_matrix(self, weight: CodedWeight, bias: torch.Tensor | None) -> MatrixProduct:
        packed = pack_codes(weight)

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            if len(hidden) > FEW_ROWS and not self.batch_invariant:
                output = F.linear(hidden, dequantized(packed, hidden.dtype)[0], bias)
                return output.float() if wide else output
            tile = TILE_M if self.batch_invariant else max(TILE_M, next_power_of_2(len(hidden)))
            return coded_product(hidden, packed, bias, wide=wide, tile=tile, in_parts=not self.batch_invariant)

        many = MatrixProduct(product, packed.held(), packed_rows(packed, weight.grid))
        if self.batch_invariant or not takes_rows(packed):
            return many
        return _with_rows(many, _SingleRow(coded_row_product, packed, bias))

    def shrink(
        self, hidden: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, tiles: RowTiles, *, sharing: int = 1
    ) -> torch.Tensor:
        """See Ops.shrink."""
        return low_rank.shrink(hidden, matrices, ranks, *tiles, sharing)

    def expand(
        self, sums: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, tiles: RowTiles,
        output: torch.Tensor, *, sharing: int = 1,
    ) -> None:  # fmt: skip
        """See Ops.expand."""
        low_rank.expand(sums, matrices, ranks, starts, *tiles, output, sharing)

    def experts(self, gate_up: Weight, down: Weight, form: ExpertsForm = ExpertsForm()) -> ExpertsProduct:
        """See Ops.experts."""
        count, first, second = gate_up.shape[0], _stacked(gate_up), _stacked(down)
        alone = None if self.batch_invariant else _experts_of_one(first, second, form)

        def product(
            hidden: torch.Tensor,
            weights: torch.Tensor,
            expert_ids: torch.Tensor,
            adapters: ExpertAdapters | None = None,
        ) -> torch.Tensor:
            tokens, chosen = expert_ids.shape
            if tokens == 1 and alone is not None and adapters is None:
                return alone(hidden, weights, expert_ids.contiguous())
            are_wide = not self.batch_invariant and _are_many(expert_ids.numel(), first, second)
            most = MOST_ROWS if are_wide and hidden.dtype != torch.float32 else MANY_ROWS
            rows = sort_by_expert(expert_ids.contiguous(), count, self._tile(expert_ids.numel(), count, most))
            sharing = chosen  # how many rows read the same inputs
            if form.weighs_inputs:
                hidden = (hidden[:, None] * weights[..., None]).to(hidden.dtype).flatten(0, 1)
                weights, sharing = torch.ones_like(weights), 1
            both = _each_by_its_own(hidden, first, rows, sharing, form.gate_up_bias, are_wide)
            adapted = None if adapters is None else _adapted_rows(adapters, expert_ids, count)
            if adapters is not None and adapted is not None:
                self._add_low_rank(hidden, both, adapters.gate_up, adapted, sharing)
            active = activate(self, both, form.activation, form.is_gated)
            results = _each_by_its_own(active, second, rows, 1, form.down_bias, are_wide)
            if adapters is not None and adapted is not None:
                self._add_low_rank(active, results, adapters.down, adapted, 1)
            return add_choices(results.view(tokens, chosen, -1), weights)

        stacks = [(tensors_of(each), "plain") if isinstance(each, torch.Tensor) else (each.held(), each.layout)
                  for each in (first, second)]  # fmt: skip
        held = [tensor for tensors, _ in stacks for tensor in tensors]
        return ExpertsProduct(product, [*held, *form.biases], ", ".join(layout for _, layout in stacks))

    def choose_experts(
        self, logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing, present: torch.Tensor | None = None,
        factors: torch.Tensor | None = None, into: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """See Ops.choose_experts."""
        groups = (routing.num_groups, routing.chosen_groups)
        return choose_experts(
            logits, bias, routing.scoring, routing.experts_per_token, groups, routing.scale, routing.near,
            renormalize=routing.renormalize, present=present, factors=factors, into=into,
        )  # fmt: skip

    def _tile(self, rows: int, matrices: int, most: int = MANY_ROWS) -> int:
        """The number of rows in a product's tile; constant if batch-invariant."""
        return TILE_M if self.batch_invariant else tile_rows(rows, matrices, most)

    def _add_low_rank(
        self, hidden: torch.Tensor, output: torch.Tensor, matrices: LowRankMatrices, tiles: RowTiles, divisor: int
    ) -> None:
        """Adds to each row of the output the low-rank product of hidden[row // divisor] with its group's matrices."""
        sources = RowTiles(torch.where(tiles.rows >= 0, tiles.rows // divisor, -1), tiles.groups)
        sums = self.shrink(hidden, matrices.down, matrices.ranks, sources)
        self.expand(sums, matrices.up, matrices.ranks, matrices.starts, tiles, output)

    def rms_norm(
        self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops.rms_norm."""
        size = hidden.shape[-1]
        if output is None:
            return rms_norm(hidden.reshape(-1, size), None, weight, epsilon).view(hidden.shape)
        rms_norm(hidden.view(-1, size), None, weight, epsilon, output.view(-1, size))
        return output

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_rms_norm."""
        return rms_norm(hidden, residual, weight, epsilon)

    def rotate(
        self,
        heads: torch.Tensor,
        table_rows: torch.Tensor,
        num_query: int,
        norms: HeadNorms | None,
        interleaved: bool = False,
    ) -> torch.Tensor:
        """See Ops.rotate."""
        rotate(heads, table_rows, num_query, norms, interleaved)
        return heads

    def rotate_pairs(self, pairs: torch.Tensor, table_rows: torch.Tensor, output: torch.Tensor) -> None:
        """See Ops.rotate_pairs."""
        rotate_pairs(pairs, table_rows, output)

    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops.activate_and_multiply."""
        return activation_kernels.activate_and_multiply(gate_up, _named(activation))

    def activate(self, values: torch.Tensor, activation: PlainActivation) -> torch.Tensor:
        """See Ops.activate."""
        return activation_kernels.activate(values, activation)

    def xielu(self, values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """See Ops.xielu."""
        return activation_kernels.xielu(values, numbers)

    def stream_weights(self, scores: torch.Tensor, count: int, iterations: int, epsilon: float) -> torch.Tensor:
        """See Ops.stream_weights."""
        return stream_weights(scores, count, iterations, epsilon)


class InvariantTritonOps(TritonOps):
    """TritonOps with batch-invariant matrix products.

    The other operations compute each row by itself, or use tiles of one shape, and need no change.
    """

    batch_invariant = True
    product_rows = ()

    def matrix(self, weight: Weight, bias: torch.Tensor | None) -> MatrixProduct:
        """See Ops.matrix."""
        if not isinstance(weight, torch.Tensor):
            return super().matrix(weight, bias)

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            return fixed_product(hidden[:, None], weight[None], bias, wide)[:, 0]

        return MatrixProduct(product, [weight])

    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """See Ops.head_matrices."""

        def product(hidden: torch.Tensor, output: torch.Tensor) -> None:
            output.copy_(fixed_product(hidden, weight))

        return product


@dataclass(frozen=True, eq=False)
class _SingleRow:
    """See RowProduct."""

    compute: Callable[..., torch.Tensor]  # single_row_product, or the same for codes
    weight: torch.Tensor | PackedCodes
    bias: torch.Tensor | None

    @property
    def most_rows(self) -> int:
        """See RowProduct."""
        return most_rows(self.weight) if isinstance(self.weight, torch.Tensor) else MOST_CODED_ROWS

    def __call__(self, hidden: torch.Tensor, **around: Any) -> torch.Tensor:
        """The product, with the fused operations that `around` names."""
        return self.compute(hidden, self.weight, self.bias, **around)

    def of_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """See RowProduct.of_norm."""
        return self(hidden, norm=Norm(residual, weight, epsilon))

    def of_activated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See RowProduct.of_activated."""
        return self(gate_up, activation=_named(activation))

    def add_to(self, total: torch.Tensor, hidden: torch.Tensor, added: torch.Tensor) -> None:
        """See RowProduct.add_to."""
        self(hidden, total=total, added=added)


def _with_rows(many: MatrixProduct, row: _SingleRow) -> MatrixProduct:
    """Adds a separate kernel for few rows to the product `many`."""
    most = row.most_rows

    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        if len(hidden) > most or hidden.stride(1) != 1:
            return many(hidden, wide=wide)
        return row(hidden, wide=wide)

    return replace(many, compute=product, row=row)


def _named(activation: Activation) -> NamedActivation:
    """The activation in the form that the kernels take."""
    if isinstance(activation, ClampedSwish):
        return NamedActivation("clamped", activation.slope, activation.limit)
    if isinstance(activation, ClippedSilu):
        return NamedActivation("clipped", activation.gate_limit, activation.limit)
    return NamedActivation(activation)


def _stacked(weight: Weight) -> torch.Tensor | PackedCodes:
    """[experts, outputs, inputs] as the kernels read it. Inputs of int8 experts are not quantized."""
    if isinstance(weight, Int8Weight):
        codes = (weight.values.to(torch.int16) + 128).to(torch.uint8)
        weight = CodedWeight(INT8, codes, weight.scale[..., None], None, weight.shape[-1])
    return pack_codes(weight) if isinstance(weight, CodedWeight) else weight


def _experts_of_one(
    first: torch.Tensor | PackedCodes, second: torch.Tensor | PackedCodes, form: ExpertsForm
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """The experts of a single token, given its hidden states, weights and ids. None means it is computed as several."""
    if form.weighs_inputs or not form.is_gated:
        return None
    activation = _named(form.activation)
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        stacks = Stack(first, form.gate_up_bias), Stack(second, form.down_bias)
        return lambda hidden, weights, ids: single_row_experts(hidden, *stacks, weights, ids, activation)
    if not (isinstance(first, PackedCodes) and isinstance(second, PackedCodes)):
        return None
    if not (takes_rows(first) and takes_rows(second)):
        return None

    def coded(hidden: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        both = coded_row_product(hidden, first, form.gate_up_bias, expert_ids=ids[0])
        results = coded_row_product(both, second, form.down_bias, activation=activation, expert_ids=ids[0])
        return add_choices(results[None], weights)

    return coded


def _adapted_rows(adapters: ExpertAdapters, expert_ids: torch.Tensor, num_experts: int) -> RowTiles:
    """Tiles of (token, choice) rows grouped by adapter and expert; tokens without an adapter are in no tile."""
    none = len(adapters.down.ranks)
    own = adapters.adapters[:, None].long()
    groups = torch.where((own >= 0) & (expert_ids >= 0), own * num_experts + expert_ids, none)
    rows = sort_by_expert(groups, none + 1)
    places = torch.where(rows.row < rows.num_rows, rows.row, -1).view(-1, TILE_M)
    return RowTiles(places, torch.where(rows.expert < none, rows.expert, -1))


def _are_many(rows: int, *stacks: torch.Tensor | PackedCodes) -> bool:
    """Whether there are so many rows that stacks in codes had better be dequantized first, for which there is room."""
    coded = [each for each in stacks if isinstance(each, PackedCodes)]
    return all(
        each.order is None
        and rows >= 2 * FEW_ROWS * len(each.codes)
        and 2 * len(each.codes) * each.outputs * each.inputs <= _MOST_WIDE_BYTES
        for each in coded
    )


def _each_by_its_own(
    hidden: torch.Tensor,
    stack: torch.Tensor | PackedCodes,
    rows: SortedRows,
    divisor: int,
    bias: torch.Tensor | None,
    are_wide: bool,
) -> torch.Tensor:
    if isinstance(stack, torch.Tensor):
        return grouped_product(hidden, stack, rows, divisor, bias)
    if are_wide:
        return grouped_product(hidden, dequantized(stack, hidden.dtype), rows, divisor, bias)
    return grouped_coded_product(hidden, stack, rows, divisor, bias)
