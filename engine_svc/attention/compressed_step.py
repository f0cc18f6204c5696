"""What all layers with compressed entries share in a step: which tokens are where in their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionMetadata
from engine_svc.transfer import to_device_together

_FEW = 8  # new tokens of a sequence, up to which each looks up by itself what it sees


class Compression(NamedTuple):
    """How a layer makes entries, each of which stands for `rate` consecutive tokens."""

    rate: int
    # Each entry is also made of the tokens before its own, and an indexer chooses the entries that a query attends to
    # (compressed sparse attention). Else queries attend to all entries (heavily compressed attention).
    is_sparse: bool

    @property
    def span(self) -> int:
        """How many tokens an entry is made of, the last of which are those it stands for."""
        return 2 * self.rate if self.is_sparse else self.rate

    @property
    def series(self) -> int:
        """How many vectors a token has a part in: its own entry's, and the next one's if they overlap."""
        return 2 if self.is_sparse else 1


class Span(NamedTuple):
    """A sequence's tokens in a batch, and its length with them."""

    first: int
    end: int
    length: int


class Back(NamedTuple):
    """The last tokens up to each of several ones, themselves included."""

    sequences: torch.Tensor  # int64 [rows, 1]
    positions: torch.Tensor  # int64 [rows, count]; of the last one in place of those that there are not
    absent: torch.Tensor  # bool [rows, count], where there is no token

    @staticmethod
    def of(sequences: torch.Tensor, positions: torch.Tensor, count: int) -> Back:
        """Looks back from tokens, int64 [rows] each, at `count` tokens."""
        at = positions[:, None]
        back = at - torch.arange(count - 1, -1, -1, device=at.device)
        return Back(sequences[:, None], torch.where(back < 0, at, back), back < 0)


class Ends(NamedTuple):
    """The tokens of a batch that are the last ones of an entry."""

    sequences: torch.Tensor  # int64 [entries]
    positions: torch.Tensor  # int64 [entries]


@dataclass(frozen=True)
class CompressedStep:
    """A batch as layers with compressed entries see it."""

    metadata: AttentionMetadata  # of any of the groups of layers
    sequences: torch.Tensor  # int64 [tokens]
    positions: torch.Tensor  # int64 [tokens]
    few: tuple[tuple[slice, Back], ...]  # consecutive tokens of sequences with few new ones each, and their windows
    many: tuple[tuple[int, Span], ...]  # the other sequences
    read: dict[Compression, Back]  # what the entries that end in this batch are made of
    ends: dict[Compression, Ends]
    counts: dict[Compression, torch.Tensor]  # int64 [tokens], how many entries each token sees
    longest: dict[Compression, int]  # the greatest of them

    @staticmethod
    def of(
        metadata: AttentionMetadata, kinds: Sequence[Compression], window: int, device: torch.device
    ) -> CompressedStep:
        """Looks at a batch, whose lengths are the same for all groups of layers."""
        query_lens, seq_lens = (np.array(lens, np.int64) for lens in (metadata.query_lens_host, metadata.seq_lens_host))
        sequences = np.repeat(np.arange(len(query_lens)), query_lens)
        ends = np.cumsum(query_lens)
        positions = np.arange(len(sequences)) + np.repeat(seq_lens - ends, query_lens)
        closing = [np.flatnonzero((positions + 1) % kind.rate == 0) for kind in kinds]
        of, at, *rows = to_device_together([sequences, positions, *closing], device)
        found = {kind: Ends(of[each], at[each]) for kind, each in zip(kinds, rows, strict=True)}
        few, many = _divided(query_lens, ends, seq_lens)
        last = int(positions.max(initial=-1))
        return CompressedStep(
            metadata, of, at,
            few=tuple((part, Back.of(of[part], at[part], window)) for part in few),
            many=many,
            read={kind: Back.of(*end, kind.span) for kind, end in found.items()},
            ends=found,
            counts={kind: (at + 1) // kind.rate for kind in kinds},
            longest={kind: (last + 1) // kind.rate for kind in kinds},
        )  # fmt: skip

    def is_of(self, metadata: AttentionMetadata) -> bool:
        """Whether another group's metadata is of the same batch."""
        own = self.metadata
        return metadata.query_lens_host is own.query_lens_host and metadata.seq_lens_host is own.seq_lens_host


def _divided(
    query_lens: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64]
) -> tuple[list[slice], tuple[tuple[int, Span], ...]]:
    """Tokens of sequences with few new ones each, in as few parts as possible; and the other sequences."""
    few: list[slice] = []
    many: list[tuple[int, Span]] = []
    lens = zip(query_lens.tolist(), ends.tolist(), seq_lens.tolist(), strict=True)
    for sequence, (count, end, length) in enumerate(lens):
        if count > _FEW:
            many.append((sequence, Span(end - count, end, length)))
            continue
        start = few.pop().start if few and few[-1].stop == end - count else end - count
        few.append(slice(start, end))
    return few, tuple(many)
