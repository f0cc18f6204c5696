"""Adapters on the embedding: the matrix at its inputs is looked up by token, not multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from engine_svc.layers.part import Part
from engine_svc.lora.matrices import LowRankStack
from engine_svc.ops.base import RowTiles


class AdaptedEmbedding:
    """See AddToEmbeddings."""

    def __init__(
        self, stack: LowRankStack, vocabulary: Part, tiles: Callable[[], RowTiles | None],
        replaced: Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]],
    ) -> None:  # fmt: skip
        """
        Args:
            vocabulary: the rank's tokens, which are the stack's inputs.
            tiles: returns the tiles of the current batch; None if no adapter changes the embedding.
            replaced: yields rows of the batch, and the embedding that replaces the layer's for them.
        """
        self._stack, self._vocabulary, self._tiles, self._replaced = stack, vocabulary, tiles, replaced

    def __call__(self, hidden: torch.Tensor, token_ids: torch.Tensor, scale: float) -> None:
        """See AddToEmbeddings."""
        for rows, weight in self._replaced():
            ids, absent = self._own(token_ids[rows])
            hidden[rows] = (weight[ids] * scale).masked_fill_(absent[:, None], 0)
        tiles = self._tiles()
        if tiles is None:
            return
        ids, absent = self._own(token_ids[tiles.rows.clamp(min=0).long()])  # [tiles, TILE_ROWS]
        down = self._stack.matrices.down[:, 0]  # [groups, rank, tokens]
        sums = down[tiles.groups.clamp(min=0).long()[:, None], :, ids].float() * scale
        self._stack.expand(sums.masked_fill_(absent[..., None], 0)[:, :, None].contiguous(), hidden, tiles)

    def _own(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens' indices within the rank's range, and which tokens are outside of it; those get index 0."""
        ids = token_ids - self._vocabulary.first
        absent = (ids < 0) | (ids >= self._vocabulary.count)
        return ids.masked_fill(absent, 0), absent
