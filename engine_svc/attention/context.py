"""Sequences whose cached keys and values are spread over ranks (decode context parallelism).

Ranks that would otherwise all hold the same key-value head hold a part of each sequence's positions instead. Every rank
attends to its part with the queries of all ranks. The results are merged by the parts' shares of the softmax, computed
from the logarithms of their sums, as in Flash-Decoding for parts on one device (Dao et al. 2023) and ring attention for
parts on several devices (Liu et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from engine_svc.parallel.group import ParallelGroup

_Count = TypeVar("_Count", int, torch.Tensor)


@dataclass(frozen=True)
class ContextPart:
    """Every `size`-th position of a sequence, starting at `rank`, so that parts differ by at most one position.

    An entry of a block table stands for one block on each of the `size` ranks. Each rank stores its positions densely:
    place i on a rank holds position i * size + rank.
    """

    rank: int = 0
    size: int = 1

    def count(self, end: _Count) -> _Count:
        """Number of positions below `end` in the part; also the place of the first one that is not below it."""
        return (end + (self.size - 1 - self.rank)) // self.size

    def positions(self, places: torch.Tensor) -> torch.Tensor:
        """The positions at these places of the part."""
        return places * self.size + self.rank


@dataclass(frozen=True)
class SharedContext:
    """Ranks that share key-value heads, each with its own query heads and its own part of the positions."""

    group: ParallelGroup

    def gather(self, query: torch.Tensor) -> torch.Tensor:
        """Gathers the queries of all ranks: [tokens, heads of each, dim] → [tokens, heads of all, dim]."""
        return self.group.all_gather_last(query.flatten(1)).view(len(query), -1, query.shape[2])

    def merge(self, output: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        """Exchanges the ranks' results and merges them for this rank's heads: [tokens, heads of each, dim].

        Args:
            output: [tokens, heads of all, dim], attention to this rank's part; lse: [tokens, heads of all].
            sinks: [heads of each], see AttentionOptions.
        """
        size, tokens = self.group.world_size, len(output)
        sent = [_by_rank(each, size).view(torch.uint8) for each in (output.flatten(1), lse)]
        found = self.group.exchange_rows(torch.cat(sent, dim=1), [tokens] * size, [tokens] * size)
        outputs, sums = (part.contiguous() for part in found.split([part.shape[1] for part in sent], dim=1))
        return merge_parts(
            outputs.view(output.dtype).view(size, tokens, -1, output.shape[2]),
            sums.view(torch.float32).view(size, tokens, -1),
            sinks,
        )


def _by_rank(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[tokens, values of all ranks] → [ranks * tokens, values of each]."""
    return rows.view(len(rows), size, -1).transpose(0, 1).flatten(0, 1)


def merge_parts(outputs: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Merges the attention to each part of a sequence, summing in float32 from the first part to the last.

    Args:
        outputs: [parts, tokens, heads, dim]; 0 where a query has seen nothing of a part.
        lse: float32 [parts, tokens, heads], logarithms of the sums of exponentiated scores. Each query must have seen
            something of at least one part.
        sinks: [heads], see AttentionOptions.

    Returns:
        [tokens, heads, dim]
    """
    seen = lse if sinks is None else torch.cat((lse, sinks.to(lse.dtype).expand(1, *lse.shape[1:])))
    weights = (lse - seen.logsumexp(dim=0)).exp()
    whole = torch.zeros_like(outputs[0], dtype=torch.float32)
    for output, weight in zip(outputs, weights, strict=True):
        whole = torch.addcmul(whole, output.float(), weight[..., None])
    return whole.to(outputs.dtype)
