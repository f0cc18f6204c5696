"""What every layer is built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from engine_svc.layers.module_names import names_in_checkpoints
from engine_svc.layers.part import Layout, Part
from engine_svc.ops.base import ExpertAdapters, Ops, Product
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.placement import ExpertSharing
from engine_svc.quantization.base import Place, PlaceKind, QuantizationMethod


class AddToEmbeddings(Protocol):
    """Changes embeddings as the rows' adapters do."""

    def __call__(self, hidden: torch.Tensor, token_ids: torch.Tensor, scale: float) -> None:
        """
        Args:
            hidden: [tokens, size]
            token_ids: int64 [tokens]; others than the rank's have no embedding.
            scale: on what is added.
        """
        ...


class HeadAdapters(Protocol):
    """Adds what adapters change of each head's two products."""

    def to_inputs(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """By the transpose of a head's first rows: [tokens, heads, split] → [tokens, heads, size]. All may be parts of
        wider tensors, of one stride from one head to the next."""
        ...

    def to_rows(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """By a head's other rows: [tokens, heads, size] → [tokens, heads, those rows]; else as the other."""
        ...


class Adapters(Protocol):
    """What adds low-rank adapters to layers, each of which asks for it as it packs; see lora/layers.py."""

    def matrix(
        self, path: str, outputs: Mapping[str, Part], inputs: Part, product: Product, layout: Layout = Layout()
    ) -> Product:
        """A product that adds what adapters change of it.

        Args:
            path: of the layer.
            outputs: of its matrices by their names, which stand below each other.
            layout: of adapters that hold them as one.
        """
        ...

    def experts(
        self, path: str, count: int, inner: Part, hidden_size: int
    ) -> Callable[[torch.Tensor], ExpertAdapters | None]:
        """What adapters add to gated experts, for the tokens that are computed.

        Args:
            inner: features inside each.
        """
        ...

    def embedding(self, path: str, vocabulary: Part, size: int) -> AddToEmbeddings:
        """What adds what adapters change of a rank's part of an embedding."""
        ...

    def heads(self, path: str, rows: Part, heads: int, split: int, size: int) -> HeadAdapters:
        """What adds what adapters change of the matrices of heads, each of which stands below the last one's.

        Args:
            rows: of the rank's heads.
            heads: how many those are.
            split: of a head's rows, those that are used the other way round; see HeadAdapters.
            size: inputs.
        """
        ...


@dataclass
class PresentRows:
    """Which of a pass's rows are somebody's: the first, and nobody's fill up a recorded pass.

    Attributes:
        count: int32 [1], of these; None: all are.
    """

    count: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerContext:
    """One per model and rank."""

    groups: ParallelGroups
    dtype: torch.dtype
    device: torch.device
    ops: Ops
    quantization: QuantizationMethod
    path: str = ""  # of the layer in the model
    module_names: Mapping[str, str] = field(default_factory=dict)  # see ModelConfig
    adapters: Adapters | None = None  # None: none are served
    sharing: ExpertSharing = ExpertSharing()
    present: PresentRows = field(default_factory=PresentRows)  # in the pass that runs

    def adapted(
        self, product: Product, outputs: Mapping[str, Part], inputs: Part, layout: Layout = Layout()
    ) -> Product:
        """The product of the layer at this path, with what adapters change of it."""
        if self.adapters is None:
            return product
        return self.adapters.matrix(self.path, outputs, inputs, product, layout)

    def place(self, kind: PlaceKind, part: str) -> Place:
        """Of a matrix of the layer at this path."""
        return Place(kind, names_in_checkpoints(self.path, part, self.module_names))

    def at(self, name: str) -> LayerContext:
        """That of a module inside."""
        return replace(self, path=f"{self.path}.{name}".removeprefix("."))


class PackedLayer(torch.nn.Module):
    """A layer that, once loaded, turns its weight into whatever form its product is computed from."""

    # Tensors of a checkpoint beside its parameters, by the last part of their names, that say nothing new.
    ignored: frozenset[str] = frozenset()

    def pack(self) -> None:
        """Called once, when the weights are loaded; frees those that are not needed any more."""
        raise NotImplementedError

    def weights(self) -> Sequence[torch.Tensor]:
        """What a forward pass reads of the matrices, once packed, as far as that may lie elsewhere between passes."""
        return ()
