"""The shapes of compressed attention, and of the indexers of sparse attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentConfig:
    """Compressed attention: the keys and values of all heads are derived from one short vector, which is cached."""

    query_rank: int | None  # size of the intermediate vector that queries are derived from; None means there is none
    rank: int  # size of the cached vector
    plain_dim: int  # values of a head's key that are not rotated
    rotated_dim: int  # values of a key that are rotated; the same for all heads, and cached with the vector
    value_dim: int
    vector_scale: float = 1.0  # factor on the cached vector


@dataclass(frozen=True)
class IndexerConfig:
    """How layers with compressed attention choose the positions they attend to; see ChosenAttention."""

    heads: int
    head_dim: int
    most: int  # positions that a query attends to
    interleaved: bool  # neighboring values are rotated with each other, not those half of the rotated ones apart
    rotates_last: bool = False  # the last values of heads, not the first
    norm_eps: float = 1e-6  # of the keys' norm
    shared_layers: frozenset[int] = frozenset()  # attend to what the last layer before them with an indexer has chosen


@dataclass(frozen=True)
class BlockIndexerConfig:
    """How layers with keys and values choose the blocks of positions they attend to; see ChosenBlocks."""

    heads: int  # one for each key-value head
    head_dim: int
    block_size: int
    most_blocks: int  # that a query attends to
    local_blocks: int  # that a query attends to in any case, the last ones that it sees
    whole_layers: frozenset[int]  # attend to all positions

    @property
    def most(self) -> int:
        """Positions that a query attends to."""
        return self.block_size * self.most_blocks

    @property
    def shared_layers(self) -> frozenset[int]:
        """No layer attends to what another one has chosen."""
        return frozenset()
