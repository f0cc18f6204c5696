"""Batches of encoder-decoder models: which rows are text, and what text attends to.

At the beginning of each sequence are tokens that stand for an encoder's output. Their rows are given. Layers do not
compute them: they only cache the output's keys and values at these places, and text attends to them apart from text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from engine_svc.attention.base import AttentionMetadata, AttentionShape
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.models.config import ModelFacts
from engine_svc.transfer import to_device_together


class TextMetadata(NamedTuple):
    """What the text of a batch attends to."""

    text: AttentionMetadata
    encoded: AttentionMetadata  # the encoder's output, whose new rows are the batch's other tokens


class EncoderRows:
    """Divides the rows of batches."""

    def __init__(self, facts: ModelFacts, max_num_seqs: int, shape: AttentionShape) -> None:
        self._tokens, self._rows, self._block_size = facts.encoder_tokens, facts.encoder_rows, shape.block_tokens
        # Always the same memory, which recorded passes read.
        self._lens = torch.full((max_num_seqs,), self._rows, dtype=torch.int32, device=shape.device)

    @classmethod
    def of(cls, facts: ModelFacts, max_num_seqs: int, shape: AttentionShape) -> EncoderRows | None:
        """For a model's batches; None if it is no encoder-decoder model."""
        return cls(facts, max_num_seqs, shape) if facts.encoder_tokens else None

    def divide(
        self, metadata: AttentionMetadata, embedded: EmbeddedRows | None
    ) -> tuple[TextMetadata, EmbeddedRows | None]:
        """
        Args:
            metadata: of all rows.
            embedded: the encoder's output; None if all rows are text.

        Returns:
            The metadata of rows that are text, and the encoder's output with the text's rows.
        """
        if embedded is None:
            return TextMetadata(metadata, self._encoded(metadata, metadata.slot_mapping[:0])), None
        new, lens = np.array(metadata.query_lens_host), np.array(metadata.seq_lens_host)
        text = np.clip(lens - self._tokens, 0, new)
        ends = np.cumsum(new)
        is_text = np.arange(ends[-1]) >= np.repeat(ends - text, new)
        present = np.flatnonzero(text)  # sequences that have any
        starts = np.concatenate(([0], np.cumsum(text[present]))).astype(np.int32)
        rows, others, starts_there, sequences = to_device_together(
            [np.flatnonzero(is_text), np.flatnonzero(~is_text), starts, present], metadata.seq_lens.device
        )
        slots = metadata.slot_mapping
        own = replace(
            metadata, query_start_loc=starts_there, seq_lens=metadata.seq_lens[sequences],
            block_table=metadata.block_table[sequences], slot_mapping=slots[rows],
            query_lens_host=text[present].tolist(), seq_lens_host=lens[present].tolist(),
        )  # fmt: skip
        return TextMetadata(own, self._encoded(own, slots[others])), replace(embedded, text=rows)

    def _encoded(self, text: AttentionMetadata, slot_mapping: torch.Tensor) -> AttentionMetadata:
        count, held = len(text.seq_lens_host), text.block_table.shape[1] * self._block_size
        lens, longest = self._lens[:count], min(self._rows, held)
        if longest < self._rows:  # only while kernels warm up, with sequences of any tokens
            lens = lens.clamp(max=longest)
        return replace(text, seq_lens=lens, seq_lens_host=[longest] * count, slot_mapping=slot_mapping)
