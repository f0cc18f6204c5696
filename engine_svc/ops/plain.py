"""The operations in plain torch: for any device and dtype, and the reference for the other implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F

from engine_svc.ops.base import (
    TILE_ROWS,
    Activation,
    Affine,
    ClampedSwish,
    ClippedSilu,
    ComputeExperts,
    ExpertAdapters,
    ExpertsForm,
    ExpertsProduct,
    HeadNorms,
    HeadsProduct,
    LowRankMatrices,
    MatrixProduct,
    Ops,
    PlainActivation,
    Product,
    Routing,
    RowTiles,
    Scoring,
    activate,
    of_present,
)
from engine_svc.ops.rounding import to_int4
from engine_svc.ops.weights import CodedWeight, Int8Weight, Weight, layout_of, tensors_of

_ACTIVATIONS: Mapping[PlainActivation, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "silu": F.silu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "gelu": F.gelu,
        "relu": F.relu,
        "relu2": lambda values: F.relu(values).square(),
    }
)
_SCORES: Mapping[Scoring, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "softmax": lambda logits: logits.softmax(-1),
        "sigmoid": torch.sigmoid,
        "sigmoid, biased logits": torch.sigmoid,
        "sqrtsoftplus": lambda logits: F.softplus(logits).sqrt(),
    }
)


class PlainOps(Ops):
    """See Ops."""

    def matrix(self, weight: Weight, bias: torch.Tensor | None) -> MatrixProduct:
        """See Ops.matrix."""
        if isinstance(weight, Int8Weight):
            return MatrixProduct(_int8_matrix(weight, bias), tensors_of(weight))
        if isinstance(weight, CodedWeight):
            return MatrixProduct(coded_matrix(weight, bias), tensors_of(weight))

        def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = F.linear(hidden, weight, bias)
            return output.float() if wide else output

        return MatrixProduct(product, tensors_of(weight))

    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """See Ops.head_matrices."""

        def product(hidden: torch.Tensor, output: torch.Tensor) -> None:
            torch.bmm(hidden.transpose(0, 1), weight.transpose(1, 2), out=output.transpose(0, 1))

        return product

    def shrink(
        self, hidden: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, tiles: RowTiles, *, sharing: int = 1
    ) -> torch.Tensor:
        """See Ops.shrink."""
        sums = hidden.new_zeros((len(tiles.groups), TILE_ROWS, *matrices.shape[1:3]), dtype=torch.float32)
        for tile, group, rows in _filled(tiles):
            for part, rank in enumerate(ranks[group // sharing].tolist()):
                own = matrices[group // sharing, part, :rank].float()
                sums[tile, : len(rows), part, :rank] = hidden[rows].float() @ own.T
        return sums

    def expand(
        self, sums: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, tiles: RowTiles,
        output: torch.Tensor, *, sharing: int = 1,
    ) -> None:  # fmt: skip
        """See Ops.expand."""
        for tile, group, rows in _filled(tiles):
            for part, rank in enumerate(ranks[group // sharing].tolist()):
                columns = slice(*starts[part : part + 2].tolist())
                added = sums[tile, : len(rows), part, :rank] @ matrices[group // sharing, :rank, columns].float()
                output[rows, columns] = (output[rows, columns].float() + added).to(output.dtype)

    def quantize_rows(self, values: torch.Tensor) -> Int8Weight:
        """See Ops.quantize_rows."""
        return Int8Weight(*quantize_rows(values))

    def quantize_groups(self, values: torch.Tensor, group: int) -> CodedWeight:
        """See Ops.quantize_groups."""
        return to_int4(values, group)

    def experts(self, gate_up: Weight, down: Weight, form: ExpertsForm = ExpertsForm()) -> ExpertsProduct:
        """See Ops.experts."""
        stacks = ((gate_up, form.gate_up_bias), (down, form.down_bias))
        firsts, seconds = (
            [
                self.matrix(of_expert(stack, index), None if biases is None else biases[index])
                for index in range(stack.shape[0])
            ]
            for stack, biases in stacks
        )
        product = experts_of_products(self, list(zip(firsts, seconds, strict=True)), form)
        held = [*tensors_of(gate_up), *tensors_of(down), *form.biases]
        return ExpertsProduct(product, held, f"{layout_of(gate_up)}, {layout_of(down)}")

    def choose_experts(
        self, logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing, present: torch.Tensor | None = None,
        factors: torch.Tensor | None = None, into: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """See Ops.choose_experts."""
        if into is not None:
            weights, expert_ids = self.choose_experts(logits, bias, routing, present, factors)
            return weights, into.copy_(expert_ids)
        if present is not None:
            weights, expert_ids = self.choose_experts(logits, bias, routing, factors=factors)
            return weights, of_present(expert_ids, present)
        if factors is not None:
            weights, expert_ids = self.choose_experts(logits, bias, routing)
            return weights * factors[expert_ids], expert_ids
        if routing.scoring == "sparsemixer":
            return _mix_sparsely(logits, routing)
        scores = _SCORES[routing.scoring](logits)
        # All scorings grow with the logits, and logits still differ where scores have saturated at 0 or 1.
        ranked = logits if bias is None or routing.scoring == "sigmoid, biased logits" else scores
        ranked = ranked if bias is None else ranked + bias
        if routing.num_groups > 1:
            ranked = _of_the_best_groups(ranked, routing, 1 if bias is None else 2)
        expert_ids = ranked.topk(routing.experts_per_token, dim=-1).indices
        weights = scores.gather(-1, expert_ids)
        if routing.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * routing.scale if routing.scale != 1.0 else weights, expert_ids

    def take_rows(
        self, matrix: torch.Tensor, indices: torch.Tensor, scale: float = 1.0, first: int | None = None
    ) -> torch.Tensor:
        """See Ops.take_rows."""
        rows = matrix[indices] if first is None else _own_rows(matrix, indices - first)
        return rows if scale == 1.0 else rows * scale

    def mean_rows(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """See Ops.mean_rows."""
        return torch.stack([rows.float().mean(0) for rows in hidden.split(starts.diff().tolist())])

    def zeros_like(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Ops.zeros_like."""
        return torch.zeros_like(hidden)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Ops.join."""
        return torch.cat([part.flatten(1) for part in parts], dim=-1)

    def add(self, total: torch.Tensor, values: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """See Ops.add."""
        return total.add_(values if gates is None else values * gates.sigmoid().to(values.dtype))

    def gate(self, values: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """See Ops.gate."""
        return values.mul_(gates.float().sigmoid().to(values.dtype))

    def clip(self, values: torch.Tensor, most: float) -> torch.Tensor:
        """See Ops.clip."""
        return values.clamp_(-most, most)

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        """See Ops.softcap."""
        return logits.div_(cap).tanh_().mul_(cap)

    def scale(self, values: torch.Tensor, factor: float) -> torch.Tensor:
        """See Ops.scale."""
        return values.mul_(factor)

    def scale_rows(self, values: torch.Tensor, factors: torch.Tensor) -> None:
        """See Ops.scale_rows."""
        values.mul_(factors)

    def rms_norm(
        self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops.rms_norm."""
        normed = F.rms_norm(hidden, weight.shape, weight, epsilon)
        return normed if output is None else output.copy_(normed)

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_rms_norm."""
        return F.rms_norm(residual.add_(hidden), weight.shape, weight, epsilon)

    def layer_norm(
        self, hidden: torch.Tensor, affine: Affine, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops.layer_norm."""
        normed = F.layer_norm(hidden, affine.weight.shape, affine.weight, affine.bias, epsilon)
        return normed if output is None else output.copy_(normed)

    def add_layer_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, affine: Affine, epsilon: float
    ) -> torch.Tensor:
        """See Ops.add_layer_norm."""
        return self.layer_norm(residual.add_(hidden), affine, epsilon)

    def rotate(
        self,
        heads: torch.Tensor,
        table_rows: torch.Tensor,
        num_query: int,
        norms: HeadNorms | None,
        interleaved: bool = False,
    ) -> torch.Tensor:
        """See Ops.rotate."""
        if norms is not None:
            query = self.rms_norm(heads[:, :num_query], norms.query, norms.epsilon)
            heads = torch.cat((query, self.rms_norm(heads[:, num_query:], norms.key, norms.epsilon)), dim=1)
        cosine, sine = table_rows[:, 0, None], table_rows[:, 1, None]
        half = table_rows.shape[-1]
        turning, rest = heads.split((2 * half, heads.shape[-1] - 2 * half), dim=-1)
        first, second = (turning[..., 0::2], turning[..., 1::2]) if interleaved else turning.chunk(2, dim=-1)
        turned = first * cosine - second * sine, second * cosine + first * sine
        both = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
        return torch.cat((both, rest), dim=-1)

    def rotate_pairs(self, pairs: torch.Tensor, table_rows: torch.Tensor, output: torch.Tensor) -> None:
        """See Ops.rotate_pairs."""
        cosine, sine = table_rows[:, 0, None], table_rows[:, 1, None]
        first, second = pairs[..., 0::2], pairs[..., 1::2]
        torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1, out=output)

    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops.activate_and_multiply."""
        gate, up = gate_up.chunk(2, dim=-1)
        if isinstance(activation, ClampedSwish):
            gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
            return gate * (gate * activation.slope).sigmoid() * (up + 1)
        if isinstance(activation, ClippedSilu):
            return F.silu(gate).clamp(max=activation.gate_limit) * up.clamp(-activation.limit, activation.limit)
        return _ACTIVATIONS[activation](gate) * up

    def activate(self, values: torch.Tensor, activation: PlainActivation) -> torch.Tensor:
        """See Ops.activate."""
        return values.copy_(_ACTIVATIONS[activation](values))

    def xielu(self, values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """See Ops.xielu."""
        (rise, fall, slope, limit), wide = numbers, values.float()
        falling = (slope + fall) * (torch.minimum(wide, limit).expm1() - wide)
        return values.copy_(slope * wide + torch.where(wide > 0, rise * wide.square(), falling))

    def stream_weights(self, scores: torch.Tensor, count: int, iterations: int, epsilon: float) -> torch.Tensor:
        """See Ops.stream_weights."""
        before, added, kept = scores.split((count, count, count * count), dim=1)
        weights = kept.unflatten(1, (count, count)).softmax(-1) + epsilon
        weights = weights / (weights.sum(-2, keepdim=True) + epsilon)
        for _ in range(iterations - 1):
            weights = weights / (weights.sum(-1, keepdim=True) + epsilon)
            weights = weights / (weights.sum(-2, keepdim=True) + epsilon)
        return torch.cat((before.sigmoid() + epsilon, 2 * added.sigmoid(), weights.flatten(1)), dim=1, out=scores)


def _filled(tiles: RowTiles) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yields the index, group and rows of each tile that has rows."""
    for tile, group in enumerate(tiles.groups.tolist()):
        if group >= 0:
            rows = tiles.rows[tile]
            yield tile, group, rows[rows >= 0].long()


def _of_the_best_groups(ranked: torch.Tensor, routing: Routing, judges: int) -> torch.Tensor:
    """Sets experts outside the best groups to minus infinity; groups rank by the sum of their `judges` best experts."""
    groups = ranked.unflatten(-1, (routing.num_groups, -1))
    best = groups.topk(judges, dim=-1).values.sum(-1)
    chosen = torch.zeros_like(best, dtype=torch.bool)
    chosen.scatter_(-1, best.topk(routing.chosen_groups, dim=-1).indices, value=True)
    return groups.masked_fill(~chosen[..., None], -torch.inf).flatten(-2)


def _mix_sparsely(logits: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    found = logits.topk(routing.experts_per_token, dim=-1)
    left, weights = logits, []
    for best, index in zip(found.values.split(1, -1), found.indices.split(1, -1), strict=True):
        far = best - logits > routing.near * logits.abs().maximum(best)
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, index))
        left = left.scatter(-1, index, -torch.inf)
    return torch.cat(weights, -1), found.indices


def experts_of_products(
    ops: Ops, pairs: Sequence[tuple[Product, Product]], form: ExpertsForm = ExpertsForm()
) -> ComputeExperts:
    """Computes one expert after the other, each with its pair of products (gate_up, down), which include biases."""

    def product(
        hidden: torch.Tensor,
        weights: torch.Tensor,
        expert_ids: torch.Tensor,
        adapters: ExpertAdapters | None = None,
    ) -> torch.Tensor:
        output = torch.zeros_like(hidden, dtype=torch.float32)
        for index in expert_ids[expert_ids >= 0].unique().tolist():
            rows, choice = torch.nonzero(expert_ids == index, as_tuple=True)
            first, second = pairs[index]
            inputs, share = hidden[rows], weights[rows, choice, None]
            if form.weighs_inputs:
                inputs = (inputs * share).to(hidden.dtype)
            both = first(inputs)
            if adapters is not None:
                groups = adapters.adapters[rows] * len(pairs) + index
                groups[adapters.adapters[rows] < 0] = -1
                add_low_rank(inputs, both, groups, adapters.gate_up)
            active = activate(ops, both, form.activation, form.is_gated)
            result = second(active, wide=True)
            if adapters is not None:
                add_low_rank(active, result, groups, adapters.down)
            output.index_add_(0, rows, result if form.weighs_inputs else result * share)
        return output.to(hidden.dtype)

    return product


def add_low_rank(hidden: torch.Tensor, output: torch.Tensor, groups: torch.Tensor, matrices: LowRankMatrices) -> None:
    """Adds the low-rank product of each row with its group's matrices to the output.

    Args:
        groups: [rows], -1 for rows that have no group.
    """
    starts = matrices.starts.tolist()
    for group in groups.unique().tolist():
        rows = torch.nonzero(groups == group)[:, 0]
        for part, rank in enumerate(matrices.ranks[group].tolist() if group >= 0 else ()):
            columns = slice(starts[part], starts[part + 1])
            inner = hidden[rows].float() @ matrices.down[group, part, :rank].float().T
            added = inner @ matrices.up[group, :rank, columns].float()
            output[rows, columns] = (output[rows, columns].float() + added).to(output.dtype)


def quantize_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes each row to -127 … 127, scaled by its greatest absolute value.

    Args:
        values: [..., rows, size], any floating-point type.

    Returns:
        int8 [..., rows, size], and the scales, float32 [..., rows].
    """
    wide = values.float()
    scale = wide.abs().amax(-1) / 127
    inverse = torch.where(scale > 0, 1 / scale, 0)
    return (wide * inverse[..., None]).round_().to(torch.int8), scale


def _int8_matrix(weight: Int8Weight, bias: torch.Tensor | None) -> Product:
    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        rows, scale = quantize_rows(hidden)
        output = torch._int_mm(rows, weight.values.t()).float() * scale[:, None] * weight.scale
        if bias is not None:
            output += bias.float()
        return output if wide else output.to(hidden.dtype)

    return product


def coded_matrix(weight: CodedWeight, bias: torch.Tensor | None) -> Product:
    """A product that dequantizes the whole weight each time; only the codes are kept."""

    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        output = F.linear(hidden, weight.wide(hidden.dtype), bias)
        return output.float() if wide else output

    return product


def of_expert(weight: Weight, index: int) -> Weight:
    """The weight of one expert out of [experts, outputs, inputs]."""
    if isinstance(weight, torch.Tensor):
        return weight[index]
    if isinstance(weight, Int8Weight):
        return Int8Weight(weight.values[index], weight.scale[index])
    offset = None if weight.offset is None else weight.offset[index]
    order = None if weight.order is None else weight.order[index]
    return replace(weight, codes=weight.codes[index], scale=weight.scale[index], offset=offset, order=order)


def _own_rows(matrix: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of a matrix; zeros for indices outside of it."""
    absent = (indices < 0) | (indices >= len(matrix))
    return matrix[indices.masked_fill(absent, 0)].masked_fill_(absent.view(-1, *[1] * (matrix.dim() - 1)), 0)
