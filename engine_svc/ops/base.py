"""The contract of all operations but attention: products with weights, norms, rotary embedding, activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch

from engine_svc.ops.weights import CodedWeight, Int8Weight, Weight


@dataclass(frozen=True)
class ClampedSwish:
    """gate * sigmoid(slope * gate) * (up + 1), `gate` clamped to at most `limit`, `up` to [-limit, limit] (gpt-oss)."""

    slope: float
    limit: float


@dataclass(frozen=True)
class ClippedSilu:
    """silu(gate) * up, silu(gate) clamped to at most `gate_limit`, `up` to [-limit, limit] (Step 3.5, DeepSeek V4)."""

    limit: float
    gate_limit: float


PlainActivation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2"]  # relu2: ReLU, squared
GatedActivation = ClampedSwish | ClippedSilu  # only for layers with gates
Activation = PlainActivation | GatedActivation
LearnedActivation = Literal["xielu"]  # with numbers that each layer learns, see Ops.xielu


class Product(Protocol):
    """A function that multiplies inputs by a weight."""

    def __call__(self, hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[rows, input_size] → [rows, output_size]; float32 if `wide`, else in the input's dtype."""
        ...


class Rows(Protocol):
    """Looks up rows (outputs) of a weight."""

    def __call__(
        self, indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0, first: int | None = None
    ) -> torch.Tensor:
        """The dequantized rows, rounded to `dtype`, times `scale`.

        Args:
            indices: int64 [count], the outputs to look up.
            dtype: a type that inputs of products with the weight can have.
            first: see Ops.take_rows.

        Returns:
            [count, inputs]
        """
        ...


def rows_within(count: int, look_up: Callable[[torch.Tensor], torch.Tensor]) -> Rows:
    """Rows by means of `look_up`, which takes int64 [any], all below `count`, and returns float32 [any, inputs]."""

    def rows(indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0, first: int | None = None) -> torch.Tensor:
        local = indices - (first or 0)
        absent = (local < 0) | (local >= count)
        found = look_up(local.masked_fill(absent, 0)).to(dtype)
        return (found if scale == 1.0 else found * scale).masked_fill_(absent[:, None], 0)

    return rows


class RowProduct(Protocol):
    """A product of few rows whose kernel also does the operation before or after it. All tensors are contiguous."""

    @property
    def most_rows(self) -> int:
        """The greatest number of rows it takes."""
        ...

    def of_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """The product with the result of Ops.add_rms_norm, or of Ops.rms_norm without a residual.

        Neither `hidden` nor `residual` is changed.
        """
        ...

    def of_activated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """The product with the result of Ops.activate_and_multiply."""
        ...

    def add_to(self, total: torch.Tensor, hidden: torch.Tensor, added: torch.Tensor) -> None:
        """Adds the product with `hidden`, and `added`, to `total` in place."""
        ...


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """A Product with a weight that does not change.

    Attributes:
        held: all tensors of the weight that the product reads.
        rows: looks up rows in the held tensors. None means it cannot: callers that need rows must keep the weight.
        row: the product of few rows. None means a separate kernel would gain nothing.
    """

    compute: Product
    held: Sequence[torch.Tensor]
    rows: Rows | None = None
    row: RowProduct | None = None

    def __call__(self, hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """See Product."""
        return self.compute(hidden, wide=wide)


class HeadsProduct(Protocol):
    """The product of each head with its own matrix."""

    def __call__(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """[tokens, heads, size] → [tokens, heads, outputs], both with any strides between tokens and heads."""
        ...


class LowRankMatrices(NamedTuple):
    """The matrices of all groups, as `shrink` and `expand` take them."""

    down: torch.Tensor  # [groups, parts, rank, size]
    up: torch.Tensor  # [groups, rank, outputs]
    ranks: torch.Tensor  # int32 [groups, parts]
    starts: torch.Tensor  # int64 [parts + 1]


class ExpertAdapters(NamedTuple):
    """What adapters add to experts. A group holds one adapter's matrices for one expert: adapter * experts + expert."""

    adapters: torch.Tensor  # int32 [tokens], -1 for none
    gate_up: LowRankMatrices
    down: LowRankMatrices


class ComputeExperts(Protocol):
    """Computes an ExpertsProduct."""

    def __call__(
        self,
        hidden: torch.Tensor,
        weights: torch.Tensor,
        expert_ids: torch.Tensor,
        adapters: ExpertAdapters | None = None,
    ) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size].

        Args:
            weights: float32 [tokens, chosen]
            expert_ids: int64 [tokens, chosen]; -1 for an expert that adds nothing, such as another rank's.
        """
        ...


@dataclass(frozen=True, eq=False)
class ExpertsProduct:
    """The weighted sum of the chosen experts.

    Attributes:
        held: all tensors read, with experts along the first dimension: writing to an entry changes that expert.
        layout: names the form. Where it is equal, held tensors of an expert can be copied from one product to another.
    """

    compute: ComputeExperts
    held: Sequence[torch.Tensor]
    layout: str

    def __call__(
        self,
        hidden: torch.Tensor,
        weights: torch.Tensor,
        expert_ids: torch.Tensor,
        adapters: ExpertAdapters | None = None,
    ) -> torch.Tensor:
        """See ComputeExperts."""
        return self.compute(hidden, weights, expert_ids, adapters)


class Affine(NamedTuple):
    """The weight and bias of a layer norm."""

    weight: torch.Tensor  # [size]
    bias: torch.Tensor | None  # [size]


class HeadNorms(NamedTuple):
    """RMS norms applied to each query and key head before rotation."""

    query: torch.Tensor  # [head_dim]
    key: torch.Tensor  # [head_dim]
    epsilon: float


# With biased logits, a bias is added to logits instead of scores. The last one is sqrt(log(1 + exp(logit))).
Scoring = Literal["softmax", "sigmoid", "sigmoid, biased logits", "sparsemixer", "sqrtsoftplus"]


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen from the scores of all experts.

    With sparsemixer (Liu et al. 2023), experts are chosen one after the other. Each one's weight is its part of a
    softmax over the experts not yet chosen whose logits are within `near` of its own, relative to the larger one.
    """

    experts_per_token: int
    renormalize: bool  # normalizes the chosen experts' weights to sum to one
    scoring: Scoring = "softmax"
    num_groups: int = 1  # only experts of the best `chosen_groups` groups can be chosen
    chosen_groups: int = 1
    scale: float = 1.0  # factor on the chosen experts' weights
    near: float = 0.0  # for sparsemixer


@dataclass(frozen=True, eq=False)
class ExpertsForm:
    """The properties of experts other than their weights."""

    activation: Activation = "silu"
    gate_up_bias: torch.Tensor | None = None  # [experts, 2 * size]
    down_bias: torch.Tensor | None = None  # [experts, hidden_size]
    weighs_inputs: bool = False  # routing weights multiply the experts' inputs, not their outputs (Llama 4)
    is_gated: bool = True  # else `gate_up` is one matrix, and its activation goes straight to `down`

    @property
    def biases(self) -> list[torch.Tensor]:
        """The biases that are not None."""
        return [bias for bias in (self.gate_up_bias, self.down_bias) if bias is not None]


TILE_ROWS = 16


class RowTiles(NamedTuple):
    """Rows in tiles. All rows of a tile are multiplied by the matrices of one group, and come before its gaps."""

    rows: torch.Tensor  # int32 [tiles, TILE_ROWS]; -1 for a gap
    groups: torch.Tensor  # int32 [tiles]; -1 for a tile without rows


class Ops(ABC):
    """The operations of a rank, with one instance per rank."""

    # Each row's result depends on that row alone: not on the other rows, their number or its position among them.
    batch_invariant: ClassVar[bool] = False
    # Numbers of rows for which products have kernels of their own, which are compiled when they first run.
    product_rows: ClassVar[Sequence[int]] = ()

    @abstractmethod
    def matrix(self, weight: Weight, bias: torch.Tensor | None) -> MatrixProduct:
        """A product with a weight [output_size, input_size], which may be kept in another form."""

    @abstractmethod
    def quantize_rows(self, values: torch.Tensor) -> Int8Weight:
        """Quantizes each row of [..., rows, size] to -127 … 127, scaled by its greatest absolute value."""

    @abstractmethod
    def quantize_groups(self, values: torch.Tensor, group: int) -> CodedWeight:
        """Quantizes [..., rows, size] to 4-bit codes with a scale for each row and group of values; see `to_int4`."""

    @abstractmethod
    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """The product of each head with its own matrix in [heads, outputs, size], a tensor of any strides."""

    @abstractmethod
    def shrink(
        self, hidden: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, tiles: RowTiles, *, sharing: int = 1
    ) -> torch.Tensor:
        """The first half of a low-rank product: rows times the matrices of their group, summed in float32.

        Args:
            hidden: [any, size], with any stride between rows.
            matrices: [groups / sharing, parts, rank, size]
            ranks: int32 [groups / sharing, parts], how much of `rank` each matrix uses; the rest is not read.
            sharing: how many neighboring groups share the same matrices.

        Returns:
            float32 [tiles, TILE_ROWS, parts, rank]: zero beyond a matrix's own rank, undefined in gaps.
        """

    @abstractmethod
    def expand(
        self, sums: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, tiles: RowTiles,
        output: torch.Tensor, *, sharing: int = 1,
    ) -> None:  # fmt: skip
        """The second half of a low-rank product: adds `sums` times the matrices of each row's group to the output.

        Args:
            sums: what `shrink` returned for these tiles.
            matrices: [groups / sharing, rank, outputs]: the parts' outputs side by side, each from its own sums.
            ranks: as for `shrink`.
            starts: int64 [parts + 1], the first output of each part, then the total number of outputs.
            output: [any, outputs], of any dtype and with any stride between rows.
        """

    @abstractmethod
    def experts(self, gate_up: Weight, down: Weight, form: ExpertsForm = ExpertsForm()) -> ExpertsProduct:
        """The weighted sum of the chosen experts' feed-forward layers.

        Args:
            gate_up: [experts, 2 * size, hidden_size]; without gates [experts, size, hidden_size].
            down: [experts, hidden_size, size]
        """

    @abstractmethod
    def choose_experts(
        self, logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing, present: torch.Tensor | None = None,
        factors: torch.Tensor | None = None, into: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """float32 [tokens, experts] → weights (float32) and ids (int64), both [tokens, experts_per_token].

        Args:
            bias: float32 [experts], added to the scores for choosing (see Scoring), but not to the weights. With a
                bias, a group of experts is ranked by the sum of its two best scores; without, by its best score.
            present: int32 [1], how many tokens, from the first, are real; ids of the padding are -1. None means all.
            factors: float32 [experts], on the chosen experts' weights.
            into: where the ids are written; None means into a new tensor.
        """

    @abstractmethod
    def take_rows(
        self, matrix: torch.Tensor, indices: torch.Tensor, scale: float = 1.0, first: int | None = None
    ) -> torch.Tensor:
        """The rows `indices` of a matrix [any, ...], times `scale`: [count, ...].

        Args:
            matrix: each of its rows is contiguous; they may be any stride apart.
            indices: int64 [count]
            first: the index of the matrix's first row; rows outside of the matrix become zeros. None means the matrix
                is whole.
        """

    @abstractmethod
    def mean_rows(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """The mean over the tokens of each sequence: float32 [sequences, hidden_size].

        Args:
            hidden: contiguous [tokens, hidden_size].
            starts: int32 [sequences + 1], on the host: where each sequence's tokens begin, and where the last one's
                end. Each sequence has at least one token.
        """

    @abstractmethod
    def zeros_like(self, hidden: torch.Tensor) -> torch.Tensor:
        """Zeros of the same shape and dtype as `hidden`, a contiguous [tokens, ...]."""

    @abstractmethod
    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Joins each token's values side by side.

        Args:
            parts: each [tokens, count, size], with its own count and size and any strides between tokens and counts.

        Returns:
            [tokens, all values of a token]
        """

    @abstractmethod
    def add(self, total: torch.Tensor, values: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """Adds values to the total, in place, and returns it. Both [tokens, hidden_size].

        Args:
            gates: float32 [tokens, 1], contiguous: values are multiplied by the sigmoid of these.
        """

    @abstractmethod
    def gate(self, values: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Multiplies values by the sigmoid of their gates, in place; returns them. Both contiguous [tokens, size]."""

    @abstractmethod
    def clip(self, values: torch.Tensor, most: float) -> torch.Tensor:
        """Clamps contiguous [tokens, size] to -most … most, in place, and returns it."""

    @abstractmethod
    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        """Replaces float32 [rows, vocabulary] by cap * tanh(logits / cap), in place, and returns it."""

    @abstractmethod
    def scale(self, values: torch.Tensor, factor: float) -> torch.Tensor:
        """Multiplies [rows, size], with any stride between rows, by a factor, in place, and returns it."""

    @abstractmethod
    def scale_rows(self, values: torch.Tensor, factors: torch.Tensor) -> None:
        """Multiplies [rows, size], with any stride between rows, by contiguous float32 [rows, 1], in place."""

    @abstractmethod
    def rms_norm(
        self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """hidden / rms(hidden) * weight, over the last dimension.

        Args:
            hidden: contiguous, or [rows, size] with any stride between rows.
            output: receives the result; same shape, strides as allowed for `hidden`, which it may be. None means a new
                tensor.
        """

    @abstractmethod
    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """Adds hidden to the residual, in place, and returns the norm of the sum. Both [tokens, hidden_size]."""

    @abstractmethod
    def layer_norm(
        self, hidden: torch.Tensor, affine: Affine, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(hidden - mean) / deviation * weight + bias, over the last dimension; arguments as for `rms_norm`."""

    @abstractmethod
    def add_layer_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, affine: Affine, epsilon: float
    ) -> torch.Tensor:
        """Like `add_rms_norm`, with a layer norm."""

    @abstractmethod
    def rotate(
        self,
        heads: torch.Tensor,
        table_rows: torch.Tensor,
        num_query: int,
        norms: HeadNorms | None,
        interleaved: bool = False,
    ) -> torch.Tensor:
        """Normalizes queries and keys, then rotates their first values; may work in place.

        Args:
            heads: [tokens, query and key heads, head_dim]; each token's heads are contiguous.
            table_rows: [tokens, 2, rotated values / 2], cosines and sines of the tokens' positions. If it is empty,
                nothing is rotated.
            interleaved: rotates pairs of neighboring values, not pairs from the two halves of the rotated values.
        """

    @abstractmethod
    def rotate_pairs(self, pairs: torch.Tensor, table_rows: torch.Tensor, output: torch.Tensor) -> None:
        """Rotates pairs of neighboring values, and writes the two values of a pair half a head apart.

        Args:
            pairs: [tokens, heads, rotated values], of queries or keys, with any strides between tokens and heads.
            table_rows: as for `rotate`.
            output: same shape, any strides between tokens and heads.
        """

    @abstractmethod
    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """[tokens, 2 * size] → activation(first half) * second half."""

    @abstractmethod
    def activate(self, values: torch.Tensor, activation: PlainActivation) -> torch.Tensor:
        """Applies the activation to contiguous [tokens, size], in place, and returns it."""

    @abstractmethod
    def xielu(self, values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Applies xIELU (Huang and Schlag 2024) to contiguous [tokens, size], in place, and returns it.

        A value x becomes slope * x, plus rise * x² if x > 0, else plus (slope + fall) * (e^min(x, limit) - 1 - x).

        Args:
            numbers: contiguous float32 [4]: rise, fall, slope and limit, which is negative.
        """

    @abstractmethod
    def stream_weights(self, scores: torch.Tensor, count: int, iterations: int, epsilon: float) -> torch.Tensor:
        """Turns scores into the weights of hyper-connections (Xie et al. 2026), in place, and returns them.

        Args:
            scores: contiguous float32 [tokens, count * (2 + count)]. First those of each stream in the input of a
                layer's part, which become sigmoids plus epsilon; then of the part's output in each stream, which become
                twice sigmoids; then a matrix of each stream (rows) in each new one (columns), which becomes doubly
                stochastic: a softmax of each row plus epsilon, then divided by the sums of columns, and from the second
                iteration on by those of rows and again of columns. Epsilon is added to these sums.
        """


def of_present(expert_ids: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Expert ids [tokens, chosen], with -1 for tokens past the first `present`; see Ops.choose_experts."""
    rows = torch.arange(len(expert_ids), device=expert_ids.device)[:, None]
    return torch.where(rows < present, expert_ids, -1)


def activate(ops: Ops, values: torch.Tensor, activation: Activation, is_gated: bool) -> torch.Tensor:
    """Applies the activation to the result of a feed-forward layer's first product, gated or not; may work in place."""
    if is_gated:
        return ops.activate_and_multiply(values, activation)
    assert not isinstance(activation, GatedActivation)
    return ops.activate(values, activation)
