"""The vocabulary, sharded over ranks: embedding at the input, logits at the output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.layers.context import AddToEmbeddings, LayerContext, PackedLayer
from engine_svc.layers.split import Part, Split, bias_of, hold, split_parameter
from engine_svc.ops.base import Product, Rows, rows_within
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.parallel.vocabulary import VocabularyPart


@dataclass(frozen=True)
class ImageExtras:
    """What some models' layers need of images beside their embeddings."""

    rows: torch.Tensor  # int64 [rows] of a batch
    positions: torch.Tensor | None  # int64 [positions, rows], for rotation: see media/rotary_positions.py
    deep_rows: torch.Tensor  # int64 [deep rows] of a batch
    deep: torch.Tensor | None  # [kinds, deep rows, hidden_size], added between layers: see ModelConfig.feature_layers

    def part(self, first: int, last: int) -> ImageExtras:
        """See EmbeddedRows.part."""
        in_it, deep_in_it = ((rows >= first) & (rows < last) for rows in (self.rows, self.deep_rows))
        positions = None if self.positions is None else self.positions[:, in_it]
        deep = None if self.deep is None else self.deep[:, deep_in_it]
        return ImageExtras(self.rows[in_it] - first, positions, self.deep_rows[deep_in_it] - first, deep)


@dataclass(frozen=True)
class EmbeddedRows:
    """Rows of a batch whose embeddings are given: in place of those of their token ids, or in addition to them."""

    rows: torch.Tensor  # int64 [rows]
    values: torch.Tensor  # [rows, hidden_size]
    images: ImageExtras | None = None
    # int64, the other rows, which are text, if layers attend to the values apart: see ModelFacts.encoder_tokens.
    text: torch.Tensor | None = None
    # int64, on the host: those of images whose tokens attend in both directions, see ModelFacts.whole_image_tokens.
    both_ways: npt.NDArray[np.int64] | None = None

    def put(self, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """The embeddings [tokens, hidden_size] of a batch, with these rows replaced by their values times `scale`."""
        return hidden.index_copy(0, self.rows, self.values if scale == 1.0 else self.values * scale)

    def add(self, hidden: torch.Tensor) -> torch.Tensor:
        """The embeddings [tokens, hidden_size] of a batch, with the values added to those of these rows."""
        return hidden.index_add(0, self.rows, self.values)

    def part(self, first: int, last: int) -> EmbeddedRows:
        """The given embeddings of batch rows `first` to `last` (exclusive), with row indices relative to `first`."""
        in_it = (self.rows >= first) & (self.rows < last)
        images = None if self.images is None else self.images.part(first, last)
        return EmbeddedRows(self.rows[in_it] - first, self.values[in_it], images)


class VocabParallelEmbedding(PackedLayer):
    """The embedding matrix, sharded by rows: an equal range on each rank, except that the last one may have fewer."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, context: LayerContext, is_input: bool = True,
        is_output: bool = False, scale: float = 1.0, bias: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            is_input: rows will be looked up.
            is_output: `logits` or `own_logits` will be called.
            scale: factor on looked-up rows.
            bias: whether the output has a bias.

        Raises:
            ValueError: there are more ranks than tokens.
        """
        super().__init__()
        self._context = context
        self._group = context.groups.tensor
        self._part = VocabularyPart(vocab_size, self._group)
        if self._part.count < 1:
            raise ValueError(
                f"a vocabulary of {vocab_size} tokens cannot be divided among {self._group.world_size} ranks"
            )
        self._is_input, self._is_output = is_input, is_output
        self._scale = scale
        self._product: Product | None = None
        self._rows: Rows | None = None
        self._add: AddToEmbeddings | None = None
        own = Part(self._part.first, self._part.count, vocab_size)
        self._split = Split({"": own}, Part(0, hidden_size, hidden_size))
        self._held = hold(self, self, self._split, "head" if context.path == "lm_head" else "embedding", context)
        self.bias = split_parameter(bias_of(context.dtype), self._split, context.device) if bias else None

    def pack(self) -> None:
        """See PackedLayer.pack."""
        weight = self._held[0].take()
        product = None
        if self._is_output or isinstance(weight, CodedWeight):
            product = self._context.ops.matrix(weight, self.bias)
        if self._is_output and product is not None:
            head = replace(self._context, path="lm_head")  # its name in adapters, even if the embedding is tied
            self._product = head.adapted(product, self._split.outputs, self._split.inputs)
        if self._is_input:
            self._rows = self._rows_of(weight) if product is None or product.rows is None else product.rows
            if self._context.adapters is not None:
                vocabulary, hidden = self._split.outputs[""], self._split.inputs
                self._add = self._context.adapters.embedding(self._context.path, vocabulary, hidden.count)
        del self.bias, self._held

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → [tokens, hidden_size]."""
        hidden = self._look_up(token_ids)
        if self._add is not None:
            self._add(hidden, token_ids, self._scale)
        return self._group.all_reduce(hidden)  # for each token, only one rank has a non-zero row

    def _look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Looks up this rank's tokens; zeros for tokens of other ranks."""
        assert self._rows is not None
        first = None if self._part.count == self._part.size else self._part.first
        return self._rows(token_ids, self._context.dtype, self._scale, first)

    def _rows_of(self, weight: Weight) -> Rows:
        """Looks up rows in the weight itself, which is kept in memory for this."""
        if not isinstance(weight, torch.Tensor):
            return rows_within(weight.shape[0], weight.rows)
        take_rows = self._context.ops.take_rows

        def rows(
            indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0, first: int | None = None
        ) -> torch.Tensor:
            return take_rows(weight, indices, scale, first)

        return rows

    @property
    def part(self) -> VocabularyPart | None:
        """Which tokens `own_logits` returns. None means all."""
        return self._part if self._group.world_size > 1 else None

    def own_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] → float32 [rows, tokens of this rank]."""
        assert self._product is not None
        return self._product(hidden, wide=True)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] → float32 [rows, vocab_size]: uses the matrix as the output layer."""
        return self._part.whole(self.own_logits(hidden))
