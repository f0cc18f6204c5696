"""Attention to chosen positions by Triton kernels, of all sequences at once."""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.attention.chosen import Choosing, ChosenAttention, IndexQueries
from engine_svc.attention.context import merge_parts
from engine_svc.kernels.chosen import attend_chosen, score_positions
from engine_svc.kernels.tiles import decode_tiles, multiprocessors, prefill_tiles

_PART = 256  # least number of chosen positions in a part


class TritonChosenAttention(ChosenAttention):
    """See ChosenAttention."""

    def __init__(
        self, attention: AttentionBackend, keys: AttentionBackend, *, shared_layers: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(attention, keys, shared_layers=shared_layers)
        shape = attention.shape
        capability = torch.cuda.get_device_capability(shape.device) if shape.device.type == "cuda" else (8, 0)
        prefill = prefill_tiles(shape.head_dim, shape.dtype, capability)
        self._tiles = decode_tiles(shape.num_heads, prefill, shape.head_dim, capability)
        self._multiprocessors = multiprocessors(shape.device)

    def _scores(self, queries: IndexQueries, keys: torch.Tensor, choosing: Choosing, part: slice) -> torch.Tensor:
        return score_positions(
            queries.query[part].contiguous(), queries.weights[part].contiguous(), self.keys.vectors(keys),
            choosing.metadata.block_table, choosing.sequences[part], choosing.positions[part], choosing.longest,
        )  # fmt: skip

    def _attend(
        self, query: torch.Tensor, chosen: torch.Tensor, cache: torch.Tensor, choosing: Choosing, scale: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        programs = len(query) * -(-query.shape[1] // self._tiles.rows)
        parts = max(1, min(self.most // _PART, self._multiprocessors // programs))
        output, lse = attend_chosen(
            query.contiguous(), self.attention.vectors(cache), chosen.contiguous(), choosing.sequences,
            choosing.metadata.block_table, scale, self._tiles, parts,
        )  # fmt: skip
        if len(output) == 1 and sinks is None:
            return output[0]
        return merge_parts(output, lse, sinks).to(query.dtype)
