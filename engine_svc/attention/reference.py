"""The reference backend: one sequence and one matrix product at a time, slow and obviously correct."""

from __future__ import annotations

import torch

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    Prepared,
    first_key,
)
from engine_svc.attention.stored import to_stored


def softmax_with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the last dimension of the scores, with sinks in its denominator if given.

    Args:
        sinks: in a shape that broadcasts to that of the scores.

    Returns:
        Weights, all 0 if all scores are minus infinity or there are none; and the logarithms of the sums of
        exponentiated scores, without the last dimension.
    """
    lse = scores.logsumexp(dim=-1, keepdim=True)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(lse.dtype))
    return (scores - lse.clamp(min=torch.finfo(lse.dtype).min)).exp(), lse[..., 0]


def distances(at: torch.Tensor, positions: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Distances between queries and keys, times slopes: see AttentionOptions. Shapes must broadcast to the scores'."""
    return (at - positions).abs() * slopes


class ReferenceBackend(AttentionBackend):
    """The backend that the others are compared with. Works with any floating-point dtype."""

    name = "reference"

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare; there is nothing to prepare."""
        return Prepared(metadata)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See AttentionBackend.attend."""
        metadata, part = prepared.metadata, self.shape.part
        keys, values = cache[0], cache[-1]  # [num_blocks, block_size, heads, dim]
        self.write(key, value, cache, metadata.slot_mapping[: len(key)])
        output = torch.empty_like(query)
        start = 0
        for index, (query_len, seq_len) in enumerate(
            zip(metadata.query_lens_host, metadata.seq_lens_host, strict=True)
        ):
            first = part.count(first_key(query_len, seq_len, options))
            places = torch.arange(first, part.count(seq_len), device=query.device)
            slots = self._at(self._slots(metadata.block_table[index], places))
            at, positions = torch.arange(seq_len - query_len, seq_len, device=query.device), part.positions(places)
            rows = slice(start, start + query_len)
            output[rows], sums = self._attend(
                query[rows], keys[slots].to(query.dtype), values[slots].to(query.dtype), at[:, None], positions, options
            )
            if lse is not None:
                lse[rows] = sums
            start += query_len
        return output

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        own = slot_mapping >= 0
        new = self._at(slot_mapping[own])
        cache[0][new], cache[-1][new] = to_stored(key[own], cache.dtype), to_stored(value[own], cache.dtype)

    def _at(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks, and places in them."""
        return slots // self.shape.block_size, slots % self.shape.block_size

    def _slots(self, block_table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        size = self.shape.block_size
        return block_table[places // size].long() * size + places % size

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, at: torch.Tensor, positions: torch.Tensor,
        options: AttentionOptions,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Attention of one sequence: query [query_len, heads, dim], key and value [keys, kv_heads, dim].

        Args:
            at: [query_len, 1], positions of the queries.
            positions: [keys], positions of the keys.

        Returns:
            The output in the query's shape, and lse [query_len, heads].
        """
        group = query.shape[1] // key.shape[1]
        keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * options.scale
        if options.softcap:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        if options.slopes is not None:
            scores = scores - distances(at, positions, options.slopes[:, None, None]).to(scores.dtype)
        hidden = (positions >= options.seen_until(at)) | (positions < options.first_seen(at))
        weights, lse = softmax_with_sinks(
            scores.masked_fill(hidden, -torch.inf), None if options.sinks is None else options.sinks[:, None, None]
        )
        return torch.einsum("hqk,khd->qhd", weights, values), lse.transpose(0, 1)
