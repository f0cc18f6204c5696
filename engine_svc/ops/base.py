"""The contract of the operations between attention: products with weights, norms, rotation, activation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch

from engine_svc.ops.weights import CodedWeight, Int8Weight, Weight


@dataclass(frozen=True)
class ClampedSwish:
    """gate * sigmoid(slope * gate) * (up + 1), with a gate up to `limit` and `up` within it either way (gpt-oss)."""

    slope: float
    limit: float


PlainActivation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2"]  # the last: ReLU, squared
Activation = PlainActivation | ClampedSwish


class Product(Protocol):
    """A product with a weight."""

    def __call__(self, hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[rows, input_size] → [rows, output_size]; float32 if `wide`, else of the input's type."""
        ...


class Rows(Protocol):
    """Looks up a weight's outputs."""

    def __call__(
        self, indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0, first: int | None = None
    ) -> torch.Tensor:
        """What the weight stands for, rounded to a type that products with it have inputs of, times a factor.

        Args:
            indices: int64 [count], of outputs.
            first: see Ops.take_rows.

        Returns:
            [count, inputs]
        """
        ...


def rows_within(count: int, look_up: Callable[[torch.Tensor], torch.Tensor]) -> Rows:
    """By what looks up int64 [any], all of them below `count`: float32 [any, inputs]."""

    def rows(indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0, first: int | None = None) -> torch.Tensor:
        local = indices - (first or 0)
        absent = (local < 0) | (local >= count)
        found = look_up(local.masked_fill(absent, 0)).to(dtype)
        return (found if scale == 1.0 else found * scale).masked_fill_(absent[:, None], 0)

    return rows


class RowProduct(Protocol):
    """A product of few rows, by a kernel that does what is before it, or behind it, too. Tensors are contiguous."""

    @property
    def most_rows(self) -> int:
        """As many as it takes."""
        ...

    def of_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """Of what Ops.add_rms_norm returns, or Ops.rms_norm without a residual; neither tensor is changed."""
        ...

    def of_activated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Of what Ops.activate_and_multiply returns."""
        ...

    def add_to(self, total: torch.Tensor, hidden: torch.Tensor, added: torch.Tensor) -> None:
        """The total gets the product of `hidden` added, and what is `added`."""
        ...


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """A Product with a weight that stays as it is.

    Attributes:
        held: all that is read of the weight.
        rows: out of what is held. None: whoever wants them has to keep the weight.
        row: of few rows. None: nothing would be gained.
    """

    compute: Product
    held: Sequence[torch.Tensor]
    rows: Rows | None = None
    row: RowProduct | None = None

    def __call__(self, hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """See Product."""
        return self.compute(hidden, wide=wide)


class HeadsProduct(Protocol):
    """Each head's product with a matrix of its own."""

    def __call__(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """[tokens, heads, size] → [tokens, heads, outputs], both of any strides between tokens and heads."""
        ...


class LowRankMatrices(NamedTuple):
    """Of groups, what `shrink` and `expand` take."""

    down: torch.Tensor  # [groups, parts, rank, size]
    up: torch.Tensor  # [groups, rank, outputs]
    ranks: torch.Tensor  # int32 [groups, parts]
    starts: torch.Tensor  # int64 [parts + 1]


class ExpertAdapters(NamedTuple):
    """What adapters add to experts. A group is an adapter's matrices for an expert: adapter * experts + expert."""

    adapters: torch.Tensor  # int32 [tokens], -1 for none
    gate_up: LowRankMatrices
    down: LowRankMatrices


class ComputeExperts(Protocol):
    """What an ExpertsProduct is computed by."""

    def __call__(
        self,
        hidden: torch.Tensor,
        weights: torch.Tensor,
        expert_ids: torch.Tensor,
        adapters: ExpertAdapters | None = None,
    ) -> torch.Tensor:
        """[tokens, hidden_size] → the same.

        Args:
            weights: float32 [tokens, chosen]
            expert_ids: int64 [tokens, chosen]; -1 of one that adds nothing, such as another rank's.
        """
        ...


@dataclass(frozen=True, eq=False)
class ExpertsProduct:
    """The weighted sum of the chosen experts.

    Attributes:
        held: all that is read of the experts, which are along the first dimension: whoever writes there changes one.
        layout: in what form; what is held of an expert means the same where this is the same.
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
    """What a layer norm multiplies by and adds."""

    weight: torch.Tensor  # [size]
    bias: torch.Tensor | None  # [size]


class HeadNorms(NamedTuple):
    """Norms of each query and key head, before their rotation."""

    query: torch.Tensor  # [head_dim]
    key: torch.Tensor  # [head_dim]
    epsilon: float


Scoring = Literal["softmax", "sigmoid", "sparsemixer"]


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen from the scores of all.

    With sparsemixer (Liu et al. 2023), one is chosen after the other, and counts for its part of a softmax over those
    of the others that are left whose logits are `near` its own, relative to the greater of both.
    """

    experts_per_token: int
    renormalize: bool  # the chosen experts' weights are made to sum to one
    scoring: Scoring = "softmax"
    num_groups: int = 1  # the experts of the best `chosen_groups` groups can be chosen
    chosen_groups: int = 1
    scale: float = 1.0  # on the chosen experts' weights
    near: float = 0.0  # of sparsemixer


@dataclass(frozen=True, eq=False)
class ExpertsForm:
    """What experts are like, beside their weights."""

    activation: Activation = "silu"
    gate_up_bias: torch.Tensor | None = None  # [experts, 2 * size]
    down_bias: torch.Tensor | None = None  # [experts, hidden_size]
    weighs_inputs: bool = False  # what an expert counts is on what goes in, not on what comes out (Llama 4)
    is_gated: bool = True  # else `gate_up` is one matrix, and its activation goes on

    @property
    def biases(self) -> list[torch.Tensor]:
        """Those that there are."""
        return [bias for bias in (self.gate_up_bias, self.down_bias) if bias is not None]


TILE_ROWS = 16


class RowTiles(NamedTuple):
    """Rows in tiles of one group each, whose matrices they are multiplied by; a tile's rows come before its gaps."""

    rows: torch.Tensor  # int32 [tiles, TILE_ROWS]; -1 where there is none
    groups: torch.Tensor  # int32 [tiles]; -1 of a tile without rows


class Ops(ABC):
    """One instance per rank."""

    # What a row comes to depends on the row alone: not on the rows beside it, their number or its place among them.
    batch_invariant: ClassVar[bool] = False

    @abstractmethod
    def matrix(self, weight: Weight, bias: torch.Tensor | None) -> MatrixProduct:
        """A product with a weight [output_size, input_size], which may be kept in another form than this."""

    @abstractmethod
    def quantize_rows(self, values: torch.Tensor) -> Int8Weight:
        """Each row of [..., rows, size] to -127 … 127 of its greatest absolute value."""

    @abstractmethod
    def quantize_groups(self, values: torch.Tensor, group: int) -> CodedWeight:
        """[..., rows, size] to codes of 4 bits, with a scale for each row and group of values: see `to_int4`."""

    @abstractmethod
    def head_matrices(self, weight: torch.Tensor) -> HeadsProduct:
        """A product of each head with its own of [heads, outputs, size], which may be a view of any strides."""

    @abstractmethod
    def shrink(
        self, hidden: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, tiles: RowTiles, *, sharing: int = 1
    ) -> torch.Tensor:
        """The first half of a low-rank product: rows times matrices of their group, summed in float32.

        Args:
            hidden: [any, size], of any stride between rows.
            matrices: [groups / sharing, parts, rank, size]
            ranks: int32 [groups / sharing, parts], how much of `rank` there is; the rest is not read.
            sharing: neighbouring groups that have the same matrices.

        Returns:
            float32 [tiles, TILE_ROWS, parts, rank]: zero beyond a matrix's own rank, of no meaning where no row is.
        """

    @abstractmethod
    def expand(
        self, sums: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, tiles: RowTiles,
        output: torch.Tensor, *, sharing: int = 1,
    ) -> None:  # fmt: skip
        """The second half: adds what was shrunk, times matrices of the rows' groups, to the output's rows.

        Args:
            sums: what `shrink` returned for these tiles.
            matrices: [groups / sharing, rank, outputs]: the parts' outputs side by side, each from its own sums.
            ranks: as for `shrink`.
            starts: int64 [parts + 1], the first output of each part, and how many outputs there are.
            output: [any, outputs], of any type and stride between rows.
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
        self,
        logits: torch.Tensor,
        bias: torch.Tensor | None,
        routing: Routing,
        present: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [tokens, experts] → weights float32 and ids int64, both [tokens, experts_per_token].

        Args:
            bias: float32 [experts], helps to choose and does not count. With it, a group of experts is as good as its
                two best ones, without it as its best one.
            present: int32 [1], so many of the tokens, the first; ids of the others are -1. None: all.
        """

    @abstractmethod
    def take_rows(
        self, matrix: torch.Tensor, indices: torch.Tensor, scale: float = 1.0, first: int | None = None
    ) -> torch.Tensor:
        """Rows int64 [count] of a matrix [any, ...], times a factor: [count, ...].

        Args:
            matrix: each of its rows is contiguous; they may be any stride apart.
            first: what number the matrix's first row has; rows that it does not have are zeros. None: it has all.
        """

    @abstractmethod
    def mean_rows(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Float32 [sequences, hidden_size]: means of the tokens of each sequence.

        Args:
            hidden: contiguous [tokens, hidden_size].
            starts: int32 [sequences + 1], on the host; of each sequence's tokens, of which there is one at least.
        """

    @abstractmethod
    def zeros_like(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of a contiguous [tokens, ...]."""

    @abstractmethod
    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Each token's values side by side.

        Args:
            parts: [tokens, count, size], each of a count and size of its own, any strides between tokens and counts.

        Returns:
            [tokens, all values of a token]
        """

    @abstractmethod
    def add(self, total: torch.Tensor, values: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """Adds values to the total, in place, and returns it. Both [tokens, hidden_size].

        Args:
            gates: float32 [tokens, 1], contiguous: the values are times their sigmoid.
        """

    @abstractmethod
    def gate(self, values: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Values times the sigmoid of their gates, in place; returns them. Both [tokens, size], contiguous."""

    @abstractmethod
    def clip(self, values: torch.Tensor, most: float) -> torch.Tensor:
        """What of [tokens, size], contiguous, is not between -most and most becomes that, in place; returns them."""

    @abstractmethod
    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        """float32 [rows, vocabulary] becomes cap * tanh(logits / cap), in place."""

    @abstractmethod
    def scale(self, values: torch.Tensor, factor: float) -> torch.Tensor:
        """[rows, size], of any stride between rows, times a factor; in place, and returned."""

    @abstractmethod
    def rms_norm(
        self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """hidden / rms(hidden) * weight, over the last dimension.

        Args:
            hidden: contiguous, or [rows, size] with any stride between rows.
            output: where it goes, of the same shape and such strides; may be `hidden` itself. None: a new tensor.
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
        """(hidden - mean) / deviation * weight + bias, over the last dimension; else as `rms_norm`."""

    @abstractmethod
    def add_layer_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, affine: Affine, epsilon: float
    ) -> torch.Tensor:
        """As `add_rms_norm`."""

    @abstractmethod
    def rotate(
        self,
        heads: torch.Tensor,
        table_rows: torch.Tensor,
        num_query: int,
        norms: HeadNorms | None,
        interleaved: bool = False,
    ) -> torch.Tensor:
        """Norms of queries and keys, then the rotation of their first values; may work in place.

        Args:
            heads: [tokens, query and key heads, head_dim]; each token's heads are contiguous.
            table_rows: [tokens, 2, rotated values / 2], cosines and sines of the tokens' positions. None are rotated if
                it is empty.
            interleaved: neighbours among the rotated values turn with each other, not those of their two halves.
        """

    @abstractmethod
    def rotate_pairs(self, pairs: torch.Tensor, table_rows: torch.Tensor, output: torch.Tensor) -> None:
        """Rotates neighbouring values; they come to stand half a head apart, in queries and keys alike.

        Args:
            pairs: [tokens, heads, rotated values], of any strides between tokens and heads.
            table_rows: as for `rotate`.
            output: of the same shape and such strides.
        """

    @abstractmethod
    def activate_and_multiply(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """[tokens, 2 * size] → activation(first half) * second half."""

    @abstractmethod
    def activate(self, values: torch.Tensor, activation: PlainActivation) -> torch.Tensor:
        """The activation of [tokens, size], contiguous, in place; returns them."""


def of_present(expert_ids: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Ids of experts [tokens, chosen], but -1 behind the first tokens; see Ops.choose_experts."""
    rows = torch.arange(len(expert_ids), device=expert_ids.device)[:, None]
    return torch.where(rows < present, expert_ids, -1)


def activate(ops: Ops, values: torch.Tensor, activation: Activation, is_gated: bool) -> torch.Tensor:
    """What a feed-forward layer's first product gives, with gates before it or without; may work in place."""
    if is_gated:
        return ops.activate_and_multiply(values, activation)
    assert not isinstance(activation, ClampedSwish)
    return ops.activate(values, activation)
