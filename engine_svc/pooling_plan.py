"""What crosses between the two sides of a worker that pools: whole sequences go down, and come back as values."""

from __future__ import annotations

import msgspec


class PooledSequence(msgspec.Struct, frozen=True, array_like=True):
    """One sequence, and what is to be made of it; every default is filled in."""

    token_ids: list[int]
    token_type_ids: list[int]  # empty where all are 0
    task: str  # embed, classify, token_embed or token_classify
    dimensions: int  # of an embedding, so many of its first values; 0 for all
    normalize: bool  # of embeddings
    use_activation: bool  # of classes


class PoolingPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step."""

    step: int
    sequences: list[PooledSequence]

    @property
    def num_tokens(self) -> int:
        """Of all sequences."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


class PooledOutput(msgspec.Struct, frozen=True, array_like=True):
    """What a sequence has become."""

    data: bytes  # float32, little-endian, row by row
    shape: tuple[int, ...]  # [values] or [tokens, values]
    num_tokens: int  # of the sequence


class PoolingResult(msgspec.Struct, frozen=True, array_like=True):
    """What a step brought: of each sequence an output, or why it failed, in words for its caller."""

    outputs: list[PooledOutput | str]
    forward_milliseconds: float
    execute_milliseconds: float


class PoolingSpec(msgspec.Struct, frozen=True, array_like=True):
    """What only the loaded model says."""

    embedding_size: int  # of a sequence, and of a token
    token_embedding_size: int
    type_vocab_size: int
    pooling_type: str  # CLS, LAST, MEAN, ALL or STEP
