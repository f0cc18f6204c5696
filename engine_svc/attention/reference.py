"""The plain backend: one sequence and one matrix product at a time, slow and obviously right."""

from __future__ import annotations

import torch

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    Prepared,
    first_key,
    to_stored,
)


def softmax_with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Over the last dimension of the scores; sinks, of a shape that broadcasts to theirs, take their part of it."""
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]


class ReferenceBackend(AttentionBackend):
    """What the other backends are compared with. Works in any floating-point type."""

    name = "reference"
    block_dimension = 1

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """Per layer [planes, num_blocks, block_size, num_kv_heads, head_dim]."""
        shape = self.shape
        size = (shape.planes, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        return [torch.zeros(size, dtype=shape.stored, device=shape.device) for _ in range(num_layers)]

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """Nothing to prepare."""
        return Prepared(metadata)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend.attend."""
        metadata = prepared.metadata
        keys, values = cache[0].flatten(0, 1), cache[-1].flatten(0, 1)
        keys[metadata.slot_mapping] = to_stored(key, cache.dtype)
        values[metadata.slot_mapping] = to_stored(value, cache.dtype)
        output = torch.empty_like(query)
        start = 0
        for index, (query_len, seq_len) in enumerate(
            zip(metadata.query_lens_host, metadata.seq_lens_host, strict=True)
        ):
            first = first_key(query_len, seq_len, options)
            slots = self._slots(metadata.block_table[index], first, seq_len)
            rows = slice(start, start + query_len)
            output[rows] = self._attend(
                query[rows], keys[slots].to(query.dtype), values[slots].to(query.dtype), seq_len, options
            )
            start += query_len
        return output

    def _slots(self, block_table: torch.Tensor, first: int, seq_len: int) -> torch.Tensor:
        positions = torch.arange(first, seq_len, device=block_table.device)
        size = self.shape.block_size
        return block_table[positions // size].long() * size + positions % size

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seq_len: int, options: AttentionOptions
    ) -> torch.Tensor:
        """One sequence: query [query_len, heads, dim], key and value [keys, kv_heads, dim], its last positions."""
        group = query.shape[1] // key.shape[1]
        keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * options.scale
        if options.softcap:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        at = torch.arange(seq_len - query.shape[0], seq_len, device=query.device)[:, None]
        to = torch.arange(seq_len - key.shape[0], seq_len, device=query.device)[None, :]
        hidden = (to >= options.seen_until(at)) | (to < options.first_seen(at))
        weights = softmax_with_sinks(
            scores.masked_fill(hidden, -torch.inf), None if options.sinks is None else options.sinks[:, None, None]
        )
        return torch.einsum("hqk,khd->qhd", weights, values)
