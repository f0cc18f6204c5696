"""The contract of what changes logits before a token is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from engine_svc.plan import SamplingPlan, TokenMasks
from engine_svc.sampling.stages.edits import LogitEdits


@dataclass(frozen=True)
class SlotSequence:
    """The sequence that takes a slot."""

    plan: SamplingPlan
    token_ids: list[int]  # all that are known, those of the prompt first
    num_prompt_tokens: int
    num_unknown_tokens: int = 0  # of the first ones: embeddings that stand for no token, whose ids mean nothing


@dataclass(frozen=True)
class StageRows:
    """The rows of a step's logits that a stage has to do with: lists of the same length."""

    rows: list[int]  # of the logits
    slots: list[int]
    num_tokens: list[int]  # known of the row's sequence, before the token that is sampled now
    masks: TokenMasks | None = None  # of the step; other rows than these may have some too
    offsets: Sequence[int] = ()  # see SampledRows


class Recorder(Protocol):
    """What a stage has still to note of a step."""

    def record(self, token_ids: torch.Tensor) -> None:
        """Notes the sampled tokens, int64 [rows of the logits] on the device. Must not raise: see LogitsStage."""
        ...


class LogitsStage(ABC):
    """One way to change logits; an instance for each rank, which holds what it needs to know of each slot.

    A step that raises anywhere leaves logits and state as they were, for its rows are sampled apart then: so a stage
    writes logits through `LogitEdits` alone, does all that may fail in `apply`, and changes its state in `record`.
    """

    # Whether it goes by the tokens before, so that it has nothing to say of the prompt's own positions.
    looks_back: ClassVar[bool] = False
    # Whether it goes by what `record` has told it of the tokens before. Then it sees one row of a sequence at a time:
    # the next once that one's token is recorded. Others may see some at once, as if their drafts were right.
    is_sequential: ClassVar[bool] = False
    # Whether it takes logits that ranks share, each of them changing its own tokens'.
    takes_parts: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        """
        Args:
            max_num_seqs: number of slots.
        """

    def reserve(self, num_tokens: int) -> None:
        """Takes all memory on the device now that it will ever hold for sequences of so many tokens."""
        return

    @abstractmethod
    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """Notes what a new sequence of a slot wants, in the place of what the last one did.

        Returns:
            Whether `apply` has to see its rows: False for a sequence without this stage's parameters.

        Raises:
            ValueError: it cannot be followed, such as a token id outside of the vocabulary; on a GPU, a kernel that
                met it would end it all.
        """

    @abstractmethod
    def apply(self, edits: LogitEdits, rows: StageRows) -> Recorder | None:
        """Changes the logits of these rows and of no others.

        Args:
            rows: of slots for which `add` was true; at least one.

        Returns:
            What takes the tokens that are sampled from them; None where the stage does not care.
        """
