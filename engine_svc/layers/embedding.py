"""The vocabulary, divided over ranks: embedding on the way in, logits on the way out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.ops.base import Product


@dataclass(frozen=True)
class EmbeddedRows:
    """Rows of a batch whose embeddings are given, whatever their token ids are."""

    rows: torch.Tensor  # int64 [rows]
    values: torch.Tensor  # [rows, hidden_size]

    def put(self, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """The embeddings [tokens, hidden_size] of a batch with these among them, times a factor."""
        return hidden.index_copy(0, self.rows, self.values if scale == 1.0 else self.values * scale)


class VocabParallelEmbedding(PackedLayer):
    """Rows of the embedding matrix, an equal range on each rank; the last rank's is padded with zeros."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, context: LayerContext, is_output: bool, scale: float = 1.0
    ) -> None:
        """
        Args:
            is_output: `logits` will be called.
            scale: on what is looked up.
        """
        super().__init__()
        self._context = context
        self._group = context.groups.tensor
        self._vocab_size = vocab_size
        self._share = -(-vocab_size // self._group.world_size)
        self._first = self._group.rank * self._share
        self._is_output = is_output
        self._scale = scale
        self._product: Product | None = None
        self.weight = LoadedParameter((self._share, hidden_size), context.dtype, context.device)
        self.weight.loader = self._load_weight

    def pack(self) -> None:
        """See PackedLayer.pack."""
        if self._is_output:
            self._product = self._context.ops.matrix(self.weight, None)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → [tokens, hidden_size]."""
        if self._group.world_size == 1:
            return self._context.ops.take_rows(self.weight, token_ids, self._scale)
        local = token_ids - self._first
        absent = (local < 0) | (local >= self._share)
        hidden = F.embedding(local.masked_fill(absent, 0), self.weight)
        hidden = self._group.all_reduce(hidden.masked_fill_(absent[:, None], 0))
        return hidden if self._scale == 1.0 else hidden * self._scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] → float32 [rows, vocab_size]: the matrix as output layer."""
        assert self._product is not None
        return self._group.all_gather_last(self._product(hidden, wide=True))[:, : self._vocab_size]

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        count = max(0, min(self._share, self._vocab_size - self._first))
        self.weight[count:] = 0
        self.weight.write(part, self.weight[:count], source, (slice(self._first, self._first + count), slice(None)))
