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


@dataclass(frozen=True)
class EntryForm:
    """How entries are made; the same for all layers of a kind."""

    rate: int  # tokens that an entry stands for
    span: int  # tokens that it is made of, the last of which are those it stands for


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
    read: dict[EntryForm, Back]  # what the entries that end in this batch are made of
    ends: dict[EntryForm, Ends]
    counts: dict[EntryForm, torch.Tensor]  # int64 [tokens], how many entries each token sees
    longest: dict[EntryForm, int]  # the greatest of them

    @staticmethod
    def of(
        metadata: AttentionMetadata, forms: Sequence[EntryForm], window: int, device: torch.device
    ) -> CompressedStep:
        """Looks at a batch, whose lengths are the same for all groups of layers."""
        query_lens, seq_lens = (np.array(lens, np.int64) for lens in (metadata.query_lens_host, metadata.seq_lens_host))
        sequences = np.repeat(np.arange(len(query_lens)), query_lens)
        ends = np.cumsum(query_lens)
        positions = np.arange(len(sequences)) + np.repeat(seq_lens - ends, query_lens)
        closing = [np.flatnonzero((positions + 1) % form.rate == 0) for form in forms]
        of, at, *rows = to_device_together([sequences, positions, *closing], device)
        found = {form: Ends(of[each], at[each]) for form, each in zip(forms, rows, strict=True)}
        few, many = _divided(query_lens, ends, seq_lens)
        last = int(positions.max(initial=-1))
        return CompressedStep(
            metadata, of, at,
            few=tuple((part, Back.of(of[part], at[part], window)) for part in few),
            many=many,
            read={form: Back.of(*end, form.span) for form, end in found.items()},
            ends=found,
            counts={form: (at + 1) // form.rate for form in forms},
            longest={form: (last + 1) // form.rate for form in forms},
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
