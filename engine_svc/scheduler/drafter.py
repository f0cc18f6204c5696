"""The contract of a drafter, which guesses the next tokens for the model to verify in one step."""

from __future__ import annotations

from typing import Any, Protocol

from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.scheduler.batch import Batch


class Drafter(Protocol):
    """Proposes drafted tokens before each step and is told afterwards how many of them were right.

    Tokens are drafted either by the control side (`propose`), or by the ranks after a step's run (`wanted`): those
    drafts are passed to `take`, for the `propose` of the next step. No method may raise.
    """

    @property
    def is_active(self) -> bool:
        """Whether tokens are drafted for the step planned last; if so, the next is planned only after it has ended."""
        return True

    def enter(self, live: LiveRequest, num_waiting: int) -> None:
        """Announces a new request, while `num_waiting` sequences wait."""

    def begin(self, sequences: list[Sequence]) -> None:
        """Announces a step to be planned with these running sequences, as far as they fit; others may start."""

    def waits_for(self, sequence: Sequence) -> bool:
        """Whether all tokens of a sequence passed to `begin` must be known before its next step is planned."""
        return True

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """Drafts up to `most` (at least 1) next tokens, or none, for a sequence without pending tokens."""

    def wanted(self, sequence: Sequence, most: int) -> int:
        """How many tokens, up to `most`, the ranks should draft after the run that this step may sample."""
        return 0

    def take(self, sequence: Sequence, token_ids: list[int]) -> None:
        """Accepts the tokens that the ranks have drafted after the sequence's known ones."""

    def verified(self, sequence: Sequence, num_drafts: int, num_right: int, num_tokens: int) -> None:
        """Reports that `num_right` drafts were accepted and `num_tokens` tokens added, cut where the sequence ends."""

    def ended(self, batch: Batch, draft_seconds: float) -> None:
        """Reports a step whose results are all booked, and for how much of its time the ranks were drafting."""

    def forget(self, sequence: Sequence) -> None:
        """Drops the state of a sequence that has ended."""

    def counters(self) -> dict[str, Any]:
        """Statistics of drafting, by the names in quire.counters."""
        return {}

    def fail(self, reason: str) -> None:
        """Reports that the ranks can no longer draft tokens."""
