"""Messages between the two sides of a worker whose requests are each computed in one step: whole sequences go down, and
pooled values come back; or images, and their embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec

from engine_svc.plan import NO_ADAPTER_CHANGES, AdapterChanges, EncodedRows
from quire.images import Image


class OneShotInput(Protocol):
    """What one step computes for a request."""

    @property
    def token_ids(self) -> Sequence[int]: ...


class PooledSequence(msgspec.Struct, frozen=True, array_like=True):
    """One sequence, and how to pool it; every default is filled in."""

    token_ids: list[int]
    token_type_ids: list[int]  # empty if all are 0
    task: str  # embed, classify, token_embed or token_classify
    dimensions: int  # number of leading values of an embedding to return; 0 for all
    normalize: bool  # normalize embeddings
    use_activation: bool  # apply the activation to class scores
    images: list[Image] = []
    adapter_slot: int = 0  # slot of the device that has its adapter; 0 for none


class PooledOutput(msgspec.Struct, frozen=True, array_like=True):
    """The pooled values of a sequence."""

    data: bytes  # float32, little-endian, row by row
    shape: tuple[int, ...]  # [values] or [tokens, values]
    num_tokens: int  # of the sequence


@dataclass(frozen=True)
class EncodingInput:
    """An image to encode."""

    image: Image

    @property
    def token_ids(self) -> range:
        """As many as the image has tokens."""
        return range(self.image.num_tokens)


Given = TypeVar("Given", bound=OneShotInput)
Output = TypeVar("Output", bound=PooledOutput | EncodedRows)


@dataclass(frozen=True)
class OneShotPlan(Generic[Given]):
    """One step."""

    step: int
    sequences: Sequence[Given]
    adapters: AdapterChanges = NO_ADAPTER_CHANGES  # made before it computes

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all sequences."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


@dataclass(frozen=True)
class OneShotResult(Generic[Output]):
    """The results of a step: for each sequence an output, or the reason of its failure, worded for the caller."""

    outputs: Sequence[Output | str]
    forward_milliseconds: float
    execute_milliseconds: float
    encoded_media: int = 0  # images that were encoded in the step
    read_adapters: Mapping[int, str] = field(default_factory=dict)  # see StepResult


PoolingPlan = OneShotPlan[PooledSequence]
PoolingResult = OneShotResult[PooledOutput]
EncodingPlan = OneShotPlan[EncodingInput]
EncodingResult = OneShotResult[EncodedRows]
