"""What queries get of the cells and entries they attend to, in torch's operators.

A prompt attends in tiles of queries, each to all keys that any of its queries sees. Where tokens see few of many keys,
because they are alone or because entries are chosen among many, each looks up its own.
"""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionOptions
from engine_svc.attention.compressed import (
    SCORE_BYTES,
    CellsPrepared,
    CompressedBackend,
    Look,
    SeenEntries,
    parts_of,
)
from engine_svc.attention.compressed_step import Back, Span
from engine_svc.attention.reference import softmax_with_sinks

_TILE = 128  # queries
_MANY = 4  # times as many entries as are chosen, beyond which each query looks up its own


class SeenSums:
    """Attention of one layer to its window and entries, all of which are cached."""

    def __init__(
        self, backend: CompressedBackend, keys: torch.Tensor, cells: CellsPrepared, entries: SeenEntries | None,
        options: AttentionOptions,
    ) -> None:  # fmt: skip
        """
        Args:
            keys: [num_blocks, block_size, head_dim], those of the cells.
            entries: None if the layer has none.
            options: of which the scale and the sinks are used.
        """
        self._backend, self._keys, self._cells, self._entries = backend, keys, cells, entries
        self._options = options

    def of(self, query: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, head_dim] → the same shape."""
        output = torch.empty_like(query)
        for rows, look in self._cells.few:
            self._look_up(query, rows, look, output)
        for sequence, span in self._cells.step.many:
            if self._chooses_few(span):
                rows, step = slice(span.first, span.end), self._cells.step
                back = Back.of(step.sequences[rows], step.positions[rows], self._backend.window)
                self._look_up(query, rows, self._backend.look(self._cells.metadata, back), output)
            else:
                self._attend_in_tiles(query, sequence, span, output)
        return output

    def _chooses_few(self, span: Span) -> bool:
        entries = self._entries
        if entries is None or entries.chosen is None:
            return False
        return span.length // entries.kind.rate > _MANY * entries.chosen.shape[1]

    def _look_up(self, query: torch.Tensor, rows: slice, look: Look, output: torch.Tensor) -> None:
        """Attends with some rows, of which each has its own keys."""
        entries = self._look_at_entries(rows)
        count = look.absent.shape[1] + (0 if entries is None else entries.absent.shape[1])
        for part in parts_of(rows, 4 * count * max(query.shape[1:])):
            within = slice(part.start - rows.start, part.stop - rows.start)
            own = look.of(within)
            keys, hidden = self._keys[own.places], own.absent
            if self._entries is not None and entries is not None:
                seen = entries.of(within)
                # Where there is no entry, there may be anything, even infinities or NaN.
                found = self._entries.vectors[seen.places].masked_fill(seen.absent[:, :, None], 0)
                keys, hidden = torch.cat((keys, found), dim=1), torch.cat((hidden, seen.absent), dim=1)
            output[part] = self._sums(query[part], keys, hidden[:, None])

    def _look_at_entries(self, rows: slice) -> Look | None:
        """The entries that rows attend to, of which all are seen or each row's are chosen; None without entries."""
        entries = self._entries
        if entries is None:
            return None
        if entries.chosen is None:
            return self._backend.look_at_all(entries.prepared, rows, entries.kind)
        return self._backend.look_at_chosen(entries.prepared, rows, entries.kind, entries.chosen)

    def _attend_in_tiles(self, query: torch.Tensor, sequence: int, span: Span, output: torch.Tensor) -> None:
        """Attends with a sequence's tokens, in tiles that share their keys."""
        entries, window, device = self._entries, self._backend.window, query.device
        known, vectors = 0, None
        if entries is not None:
            known = span.length // entries.kind.rate
            vectors = entries.vectors[self._backend.all_places(entries.prepared, sequence, known, entries.kind)]
        before = span.length - span.end  # a token's position, less its row
        row_bytes = max(4 * query.shape[1] * (window + _TILE + known), SCORE_BYTES // _TILE)
        for rows in parts_of(slice(span.first, span.end), row_bytes):
            start, end = max(0, rows.start + before - window + 1), rows.stop + before
            positions, at = (torch.arange(begin, end, device=device) for begin in (start, rows.start + before))
            keys = self._cells_of(sequence, start, end)
            hidden = (positions > at[:, None]) | (positions <= at[:, None] - window)
            if entries is not None and vectors is not None:
                count = end // entries.kind.rate
                keys = torch.cat((keys, vectors[:count]))
                hidden = torch.cat((hidden, ~_seen(entries, rows, count)), dim=1)
            output[rows] = self._sums(query[rows], keys, hidden[:, None])

    def _cells_of(self, sequence: int, start: int, end: int) -> torch.Tensor:
        """A sequence's keys at positions from `start` to before `end`: [positions, head_dim]."""
        size = self._keys.shape[1]
        first = start // size
        blocks = self._cells.metadata.block_table[sequence, first : -(-end // size)].long()
        return self._keys[blocks].flatten(0, 1)[start - first * size : end - first * size]

    def _sums(self, query: torch.Tensor, keys: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Sums of keys, which are their own values, by the softmax of their scores.

        Args:
            query: [rows, heads, head_dim]
            keys: [keys, head_dim] for all rows, or [rows, keys, head_dim].
            hidden: bool [rows, 1, keys]
        """
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        if query.device.type == "cpu":  # many processors multiply numbers of 16 bits slowly
            query, keys = query.to(wide), keys.to(wide)
        scores = (query @ keys.transpose(-1, -2)).to(wide) * self._options.scale
        sinks = None if self._options.sinks is None else self._options.sinks[:, None]
        shares, _ = softmax_with_sinks(scores.masked_fill_(hidden, -torch.inf), sinks)
        return (shares.to(query.dtype) @ keys).to(dtype)


def _seen(entries: SeenEntries, rows: slice, count: int) -> torch.Tensor:
    """Which of a sequence's first `count` entries some of its tokens attend to: bool [rows, count]."""
    if entries.chosen is None:
        numbers = torch.arange(count, device=entries.vectors.device)
        return numbers < entries.prepared.step.counts[entries.kind][rows, None]
    chosen = entries.chosen[rows]
    found = torch.zeros((len(chosen), count + 1), dtype=torch.bool, device=chosen.device)
    return found.scatter_(1, torch.where(chosen < 0, count, chosen), True)[:, :count]
