"""What every layer is constructed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from engine_svc.attention.chosen import SparseAttention
from engine_svc.layers.module_names import names_in_checkpoints
from engine_svc.layers.part import Layout, Part
from engine_svc.ops.base import ExpertAdapters, Ops, Product
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.placement import ExpertSharing
from engine_svc.quantization.base import Place, PlaceKind, QuantizationMethod


class AddToEmbeddings(Protocol):
    """Adds to embeddings what the rows' adapters change."""

    def __call__(self, hidden: torch.Tensor, token_ids: torch.Tensor, scale: float) -> None:
        """
        Args:
            hidden: [tokens, size]
            token_ids: int64 [tokens]; those of other ranks have no embedding here.
            scale: factor on what is added.
        """
        ...


class HeadAdapters(Protocol):
    """Adds what adapters change in each head's two products."""

    def to_inputs(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """For the product with the transpose of a head's first rows: [tokens, heads, split] → [tokens, heads, size].

        Both may be slices of wider tensors, with one stride from each head to the next.
        """
        ...

    def to_rows(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """For the product with a head's other rows: [tokens, heads, size] → [tokens, heads, other rows].

        Strides as in `to_inputs`.
        """
        ...


class Adapters(Protocol):
    """Adds low-rank adapters to layers; each layer calls it while packing. See lora/layers.py."""

    def matrix(
        self, path: str, outputs: Mapping[str, Part], inputs: Part, product: Product, layout: Layout = Layout()
    ) -> Product:
        """Returns the product with the adapters' changes added.

        Args:
            path: of the layer.
            outputs: those of its matrices by name; the matrices stand below each other.
            layout: of adapters that hold the matrices as one.
        """
        ...

    def experts(
        self, path: str, count: int, inner: Part, hidden_size: int
    ) -> Callable[[torch.Tensor], ExpertAdapters | None]:
        """Returns a function that gives what adapters add to gated experts for the tokens being computed.

        Args:
            path: of the layer.
            count: number of experts.
            inner: the features inside each expert.
        """
        ...

    def embedding(self, path: str, vocabulary: Part, size: int) -> AddToEmbeddings:
        """Returns the function that adds what adapters change in a rank's part of an embedding."""
        ...

    def classes(
        self, path: str, product: Product, weight: torch.Tensor, bias: torch.Tensor | None, ops: Ops
    ) -> Product:
        """Returns the product of a layer on top of a pooled model, for each row with its adapter's own matrix.

        Args:
            path: of the layer.
            weight, bias: those of the product, [outputs, inputs] and [outputs], whole on each rank.
        """
        ...

    def heads(self, path: str, rows: Part, heads: int, split: int, size: int) -> HeadAdapters:
        """Returns what adds the adapters' changes to the matrices of heads, which stand below each other.

        Args:
            path: of the layer.
            rows: the rows of the rank's heads.
            heads: the number of the rank's heads.
            split: how many of a head's first rows are used transposed; see HeadAdapters.
            size: number of inputs.
        """
        ...


@dataclass
class PresentRows:
    """How many of a pass's rows are real. Real rows come first; padding rows fill up a captured CUDA graph's batch.

    Attributes:
        count: int32 [1], the number of real rows. None means all rows are real.
    """

    count: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerContext:
    """The context that layers are constructed with; one per model and rank."""

    groups: ParallelGroups
    dtype: torch.dtype
    device: torch.device
    ops: Ops
    quantization: QuantizationMethod
    path: str = ""  # of the layer in the model
    module_names: Mapping[str, str] = field(default_factory=dict)  # see ModelConfig
    renames: Sequence[tuple[str, str]] = ()  # see ModelConfig
    adapters: Adapters | None = None  # None if no adapters are served
    sharing: ExpertSharing = ExpertSharing()
    present: PresentRows = field(default_factory=PresentRows)  # of the current pass
    chosen: SparseAttention | None = None  # None if layers attend to all positions
    expands_heads: bool = False  # whether prompts of compressed attention may have plain keys and values; see Expansion

    def adapted(
        self, product: Product, outputs: Mapping[str, Part], inputs: Part, layout: Layout = Layout()
    ) -> Product:
        """The product of the layer at this path, with the adapters' changes added."""
        if self.adapters is None:
            return product
        return self.adapters.matrix(self.path, outputs, inputs, product, layout)

    def place(self, kind: PlaceKind, part: str) -> Place:
        """The place of a matrix of the layer at this path, by which its quantization is found."""
        return Place(kind, names_in_checkpoints(self.path, part, self.module_names, self.renames))

    def at(self, name: str) -> LayerContext:
        """The context of a submodule."""
        return replace(self, path=f"{self.path}.{name}".removeprefix("."))


class PackedLayer(torch.nn.Module):
    """A layer that, once loaded, converts its weight to the form that its product is computed with."""

    # Redundant checkpoint tensors next to its parameters, by the last part of their names; they are not loaded.
    ignored: frozenset[str] = frozenset()

    def pack(self) -> None:
        """Called once, when the weights are loaded; frees tensors that are no longer needed."""
        raise NotImplementedError

    def weights(self) -> Sequence[torch.Tensor]:
        """The packed weights that a forward pass reads and that may be moved elsewhere between passes."""
        return ()
