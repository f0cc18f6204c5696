"""The shapes of attention to recent tokens and compressed entries, and of hyper-connections (DeepSeek V4, 2026)."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.attention.compressed_step import Compression


@dataclass(frozen=True)
class CompressionConfig:
    """Attention whose keys are their own values: to a window of tokens, and to entries that stand for all tokens."""

    layers: tuple[Compression | None, ...]  # None means that a layer has only its window
    window: int
    query_rank: int  # size of the vector that queries are derived from
    head_dim: int
    rotated_dim: int  # the last values of a head are rotated
    groups: int  # of heads whose outputs are projected together, to `group_rank` values
    group_rank: int
    index_heads: int
    index_head_dim: int
    most: int  # entries that a query of a sparse layer attends to

    @property
    def longest_span(self) -> int:
        """Over how many tokens any layer looks back, window or entry."""
        return max([self.window, *(each.span for each in self.layers if each is not None)])

    def cell_size(self, layer: Compression | None) -> int:
        """Numbers that a layer caches of each recent token: its key, and what entries will be made of."""
        if layer is None:
            return self.head_dim
        return self.head_dim + 2 * layer.series * self.entry_size(layer)

    def entry_size(self, layer: Compression) -> int:
        """Numbers of an entry: the key, which is its own value, and the indexer's key."""
        return self.head_dim + (self.index_head_dim if layer.is_sparse else 0)


@dataclass(frozen=True)
class StreamsConfig:
    """Manifold-constrained hyper-connections: hidden states are several streams, mixed before and after each part."""

    count: int
    iterations: int  # of the normalization that makes a mixing matrix doubly stochastic
    epsilon: float
    # The greatest weight of a part's output in a stream, if streams are not mixed with each other; None means they are.
    magnitude: float | None = None
