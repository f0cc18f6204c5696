"""The contract of stages, which change logits before a token is sampled."""

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
    token_ids: list[int]  # all known tokens, prompt first
    num_prompt_tokens: int
    num_unknown_tokens: int = 0  # leading ones whose ids are placeholders for embeddings


@dataclass(frozen=True)
class StageRows:
    """The rows of a step's logits that a stage applies to: lists of the same length."""

    rows: list[int]  # row indices in the logits
    slots: list[int]
    num_tokens: list[int]  # known tokens of the row's sequence, before the one sampled now
    masks: TokenMasks | None = None  # all masks of the step, including those of other rows
    offsets: Sequence[int] = ()  # see SampledRows


class Recorder(Protocol):
    """Records the tokens of a step for a stage."""

    def record(self, token_ids: torch.Tensor) -> None:
        """Records the sampled tokens, int64 [rows of the logits] on the device. Must not raise: see LogitsStage."""
        ...


class LogitsStage(ABC):
    """One way to change logits. Each rank has an instance, which holds its own state for each slot.

    If a step raises anywhere, logits and state must be as before, because its rows are then sampled apart. So a stage
    writes logits only through `LogitEdits`, does everything that may fail in `apply`, and changes its state in
    `record`.
    """

    # Whether it depends on previous tokens; if so, it does not apply to the prompt's own positions.
    looks_back: ClassVar[bool] = False
    # Whether it depends on previous tokens passed to `record`. Then it sees one row of a sequence at a time: the next
    # one after that one's token is recorded. Other stages may see several at once, as if all drafts were accepted.
    is_sequential: ClassVar[bool] = False
    # Whether it supports logits that ranks share, where each rank changes those of its own tokens.
    takes_parts: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        """
        Args:
            max_num_seqs: number of slots.
        """

    def reserve(self, num_tokens: int) -> None:
        """Allocates all device memory that it will need for sequences of `num_tokens` tokens."""
        return

    @abstractmethod
    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """Sets the parameters of a slot's new sequence, replacing those of the last one.

        Returns:
            Whether the stage applies to its rows; False for a sequence without this stage's parameters.

        Raises:
            ValueError: the parameters are invalid, e.g. a token id outside of the vocabulary, with which a GPU kernel
                would fail fatally.
        """

    @abstractmethod
    def apply(self, edits: LogitEdits, rows: StageRows) -> Recorder | None:
        """Changes the logits of these rows only.

        Args:
            rows: rows of slots for which `add` returned True; at least one.

        Returns:
            The recorder for the tokens sampled from them; None if the stage does not need them.
        """
