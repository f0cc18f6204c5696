"""Attention to chosen blocks of positions (MiniMax M3, 2026), by torch's operators.

The key-value heads of a layer choose apart from each other, each with a head of the layer's indexer. A block is worth
as much as its best position, and a query always attends to the last blocks that it sees.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from engine_svc.attention.base import AttentionBackend, AttentionOptions
from engine_svc.attention.chosen import PART_BYTES, Choosing, SparseAttention, known_keys, places_of, take


class ChosenBlocks(SparseAttention):
    """The choice of blocks, and attention to their positions, in one rank's layers."""

    def __init__(
        self, attention: AttentionBackend, keys: AttentionBackend, whole_layers: frozenset[int], block_size: int,
        local_blocks: int,
    ) -> None:  # fmt: skip
        """
        Args:
            attention, keys, whole_layers: see SparseAttention.
            block_size: positions in a block.
            local_blocks: how many of the last blocks that a query sees it attends to in any case.
        """
        super().__init__(attention, keys, whole_layers=whole_layers)
        self._block_size, self._local_blocks = block_size, local_blocks

    def choose(self, query: torch.Tensor, keys: torch.Tensor, choosing: Choosing) -> torch.Tensor:
        """The best blocks, in any order: int32 [choosing, heads, most / block_size].

        Args:
            query: [choosing, heads, key_dim], of the rank's key-value heads.
            keys: the layer's cache of the indexer's keys.
        """
        most = self.most // self._block_size
        found = [
            self._worths(query, keys, choosing, part).topk(most, dim=2, sorted=False).indices
            for part in self._slices(choosing, query.shape[1])
        ]
        return torch.cat(found).int()

    def attend(
        self, query: torch.Tensor, chosen: torch.Tensor, cache: torch.Tensor, choosing: Choosing,
        options: AttentionOptions,
    ) -> torch.Tensor:  # fmt: skip
        """Attends to the positions in chosen blocks: [choosing, query heads, head_dim] → the same shape.

        Args:
            chosen: int32 [choosing, key-value heads, blocks]
            cache: the layer's keys and values, with the new tokens' already written.
        """
        scales, heads = self.attention.scales_of(options), chosen.shape[1]
        cells, output = self.attention.heads(cache), torch.empty_like(query)
        head = torch.arange(heads, device=query.device)[:, None]
        within = torch.arange(self._block_size, device=query.device)
        size = max(1, PART_BYTES // (heads * self.most * query.shape[2] * query.dtype.itemsize))
        for first in range(0, len(query), size):
            part = slice(first, first + size)
            last = choosing.positions[part, None, None]
            positions = (chosen[part, ..., None] * self._block_size + within).flatten(2)
            blocks, places = places_of(
                positions.minimum(last), choosing.sequences[part], choosing.metadata, cells.shape[3]
            )
            key, value = (take(plane, (head, blocks, places)).to(query.dtype) for plane in (cells[0], cells[-1]))
            grouped = query[part].unflatten(1, (heads, -1))
            wide = torch.promote_types(query.dtype, torch.float32)
            scores = (grouped @ key.transpose(2, 3)).to(wide) * (options.scale * scales.key)
            shares = scores.masked_fill_((positions > last)[:, :, None], -torch.inf).softmax(-1).to(query.dtype)
            output[part] = (shares @ value).flatten(1, 2) * scales.value
        return output

    def _score_bytes(self, heads: int) -> int:
        return 8 * heads

    def _worths(self, query: torch.Tensor, keys: torch.Tensor, choosing: Choosing, part: slice) -> torch.Tensor:
        """What blocks are worth to some choosing queries: at least float32 [queries, heads, blocks].

        Minus infinity for a block that a query does not see, and infinity for one that it attends to in any case.
        """
        query, positions = query[part], choosing.positions[part]
        wide = torch.promote_types(query.dtype, torch.float32)
        shape, size = (len(query), query.shape[1], -(-choosing.longest // self._block_size)), self._block_size
        found = torch.full(shape, -torch.inf, dtype=wide, device=query.device)
        cells = self.keys.vectors(keys)
        for sequence, first, end, seq_len in choosing.spans:
            own = slice(max(first, part.start) - part.start, min(end, part.stop) - part.start)
            if own.start >= own.stop:
                continue
            known = known_keys(cells, choosing.metadata.block_table[sequence], seq_len).to(wide)
            blocks = -(-seq_len // size)
            hidden = torch.arange(seq_len, device=query.device) > positions[own, None, None]
            scores = (query[own].to(wide) @ known.T).masked_fill_(hidden, -torch.inf)
            whole = F.pad(scores, (0, blocks * size - seq_len), value=-torch.inf)
            found[own, :, :blocks] = whole.unflatten(2, (blocks, size)).amax(3)
        local = positions[:, None] // size - torch.arange(self._local_blocks, device=query.device)
        return found.scatter_(2, local.clamp(min=0).long()[:, None].expand(-1, shape[1], -1), torch.inf)
