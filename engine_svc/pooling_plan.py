"""Messages between the two sides of a pooling worker: whole sequences go down, and pooled values come back.

A worker that encodes for others has images and their embeddings in these places.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.images import Image


class PooledSequence(msgspec.Struct, frozen=True, array_like=True):
    """One sequence, and how to pool it; every default is filled in."""

    token_ids: list[int]
    token_type_ids: list[int]  # empty if all are 0
    task: str  # embed, classify, token_embed or token_classify
    dimensions: int  # number of leading values of an embedding to return; 0 for all
    normalize: bool  # normalize embeddings
    use_activation: bool  # apply the activation to class scores
    images: list[Image] = []


class PoolingPlan(msgspec.Struct, frozen=True, array_like=True):
    """One pooling step."""

    step: int
    sequences: list[Any]  # PooledSequence or EncodingInput

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all sequences."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


class PooledOutput(msgspec.Struct, frozen=True, array_like=True):
    """The pooled values of a sequence."""

    data: bytes  # float32, little-endian, row by row
    shape: tuple[int, ...]  # [values] or [tokens, values]
    num_tokens: int  # of the sequence


class PoolingResult(msgspec.Struct, frozen=True, array_like=True):
    """The results of a step: for each sequence an output, or the reason of its failure, worded for the caller."""

    outputs: list[Any]  # PooledOutput, EncodedRows or str
    forward_milliseconds: float
    execute_milliseconds: float
    encoded_media: int = 0  # images that were encoded in the step


class PoolingSpec(msgspec.Struct, frozen=True, array_like=True):
    """Properties known only from the loaded model."""

    embedding_size: int  # values per sequence; the next, values per token
    token_embedding_size: int
    type_vocab_size: int
    pooling_type: str  # CLS, LAST, MEAN, ALL or STEP
