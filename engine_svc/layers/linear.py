"""Linear layers, split over ranks by output (column) or by input (row) features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.split import Layout, Part, Split, bias_of, hold, split_parameter, take_all
from engine_svc.ops.base import MatrixProduct, Ops, Product, RowProduct
from engine_svc.ops.weights import Weight, wide
from engine_svc.parallel.group import ParallelGroup


class _SplitLinear(PackedLayer):
    """Matrices whose parameters and product come from the quantization method."""

    def __init__(self, split: Split, *, bias: bool, context: LayerContext) -> None:
        super().__init__()
        self._context, self._split = context, split
        self._product: Product | None = None
        self.row: RowProduct | None = None  # product of few rows; None if anything follows the product
        self._weights: Sequence[torch.Tensor] = ()
        self._held = hold(self, self, split, "linear", context)
        self.bias = split_parameter(bias_of(context.dtype), split, context.device) if bias else None

    def pack(self) -> None:
        """See PackedLayer.pack."""
        bias = self.bias if self._adds_bias() else None
        product = product_of(self._context.ops, take_all(self._held), bias)
        self._weights = product.held
        split = self._split
        self._product = self._context.adapted(product, split.outputs, split.inputs, split.layout)
        self.row = product.row if self._product is product and self._is_whole() else None
        del self.bias, self._held

    def weights(self) -> Sequence[torch.Tensor]:
        """See PackedLayer.weights."""
        return self._weights

    def _adds_bias(self) -> bool:
        return True

    def _is_whole(self) -> bool:
        """Whether this rank's product is the layer's final output."""
        return True


class ColumnParallelLinear(_SplitLinear):
    """One or more matrices side by side; every rank holds a range of each matrix's rows.

    The parts are named by subclasses and users: "q", "k", "v"; "gate", "up"; "" for a single one.
    """

    def __init__(
        self, input_size: int, parts: Mapping[str, Part], *, bias: bool, context: LayerContext,
        layout: Layout = Layout(),
    ) -> None:  # fmt: skip
        """
        Args:
            parts: this rank's rows of each matrix, by name.
            layout: of checkpoints that hold the matrices as one.
        """
        super().__init__(Split(dict(parts), Part(0, input_size, input_size), layout), bias=bias, context=context)

    def forward(self, hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[tokens, input_size] → [tokens, rows of this rank]; float32 if `wide`."""
        assert self._product is not None
        return self._product(hidden, wide=wide)


def whole_linear(input_size: int, output_size: int, *, bias: bool, context: LayerContext) -> ColumnParallelLinear:
    """A matrix that every rank holds whole."""
    return ColumnParallelLinear(input_size, {"": Part(0, output_size, output_size)}, bias=bias, context=context)


class ReplicatedLinear(PackedLayer):
    """A small matrix that every rank holds whole and unquantized: its decisions matter more than its speed."""

    def __init__(
        self, input_size: int, output_size: int, *, bias: bool = False, wide: bool = True, context: LayerContext
    ) -> None:
        """
        Args:
            wide: the output is float32 for any input dtype.
        """
        super().__init__()
        self._ops, self._context, self._wide = context.ops, context, wide
        self._product: Product | None = None
        self._split = Split({"": Part(0, output_size, output_size)}, Part(0, input_size, input_size))
        self._held = hold(self, self, self._split, "router", context)
        self.bias = split_parameter(bias_of(context.dtype), self._split, context.device) if bias else None

    def pack(self) -> None:
        """See PackedLayer.pack."""
        weight = wide(self._held[0].take(), self._context.dtype)
        self._product = self.adapted(self._ops.matrix(weight, self.bias), weight)
        del self.bias, self._held

    def adapted(self, product: Product, weight: torch.Tensor) -> Product:
        """The product with the weight and the bias, with the adapters' changes added."""
        return self._context.adapted(product, self._split.outputs, self._split.inputs)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input_size] → [tokens, output_size]."""
        assert self._product is not None
        return self._product(hidden, wide=self._wide)


def product_of(ops: Ops, weights: Sequence[Weight], bias: torch.Tensor | None) -> MatrixProduct:
    """One product with several matrices, whose outputs are joined side by side.

    Args:
        bias: the biases of all matrices, joined likewise.
    """
    counts = [weight.shape[-2] for weight in weights]
    biases = [None] * len(counts) if bias is None else bias.split(counts)
    products = [ops.matrix(weight, each) for weight, each in zip(weights, biases, strict=True)]
    if len(products) == 1:
        return products[0]

    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        return ops.join([each(hidden, wide=wide)[:, None] for each in products])

    return MatrixProduct(product, [tensor for each in products for tensor in each.held])


def even_parts(group: ParallelGroup, sizes: Mapping[str, int]) -> dict[str, Part]:
    """Divides each matrix into equal ranges of rows, one for each rank."""
    parts = {}
    for name, size in sizes.items():
        share = group.divide(size, f"output features of {name or 'a linear layer'}")
        parts[name] = Part(group.rank * share, share, size)
    return parts


def qkv_parts(
    group: ParallelGroup, num_heads: int, num_kv_heads: int, head_dim: int, value_dim: int | None = None
) -> dict[str, Part]:
    """Divides query heads among ranks, and key-value heads too; these are replicated if there are fewer than ranks.

    Args:
        value_dim: values of a head's value; None means head_dim.
    """
    query = group.divide(num_heads, "attention heads") * head_dim
    if num_kv_heads >= group.world_size:
        first = group.rank * group.divide(num_kv_heads, "key-value heads")
        count = num_kv_heads // group.world_size
    elif group.world_size % num_kv_heads:
        raise ValueError(
            f"key-value heads ({num_kv_heads}) cannot be divided among {group.world_size} ranks, nor repeated evenly"
        )
    else:
        first, count = group.rank * num_kv_heads // group.world_size, 1
    key, value = (Part(first * size, count * size, num_kv_heads * size) for size in (head_dim, value_dim or head_dim))
    return {"q": Part(group.rank * query, query, num_heads * head_dim), "k": key, "v": value}


class RowParallelLinear(_SplitLinear):
    """A matrix of which every rank holds a range of columns; the ranks' results are all-reduced."""

    def __init__(self, input_size: int, output_size: int, *, bias: bool, context: LayerContext) -> None:
        share = context.groups.tensor.divide(input_size, "input features of a linear layer")
        columns = Part(context.groups.tensor.rank * share, share, input_size)
        super().__init__(Split({"": Part(0, output_size, output_size)}, columns), bias=bias, context=context)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, input features of this rank] → [tokens, output_size], the same on every rank."""
        assert self._product is not None
        return self._context.groups.tensor.all_reduce(self._product(hidden))

    def _adds_bias(self) -> bool:
        return self._context.groups.tensor.rank == 0  # the bias is added before the all-reduce

    def _is_whole(self) -> bool:
        return self._context.groups.tensor.world_size == 1
