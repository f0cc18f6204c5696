"""The contract of whatever guesses the tokens that come next, for the model to verify in one step."""

from __future__ import annotations

from typing import Any, Protocol

from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.scheduler.batch import Batch


class Drafter(Protocol):
    """Asked before each step how many tokens are guessed, and told after it what became of them.

    The control side may guess (`propose`), or the ranks behind a step's run (`wanted`), whose guesses `take` brings for
    the next step's `propose`. None of this may raise.
    """

    @property
    def is_active(self) -> bool:
        """Whether anything is guessed for the step that was planned last; then none is planned before it has ended."""
        return True

    def enter(self, live: LiveRequest, num_waiting: int) -> None:
        """A request comes, while so many sequences wait."""

    def begin(self, sequences: list[Sequence]) -> None:
        """A step is about to be planned, in which these run, unless there is no room; others may start."""

    def waits_for(self, sequence: Sequence) -> bool:
        """Whether all tokens of a sequence of `begin` must be known before its next step is planned."""
        return True

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """The tokens that may follow the sequence's, all of which are known: `most` at most (1 or more), or none."""

    def wanted(self, sequence: Sequence, most: int) -> int:
        """How many tokens the ranks are to guess behind the run that this step may sample; `most` at most."""
        return 0

    def take(self, sequence: Sequence, token_ids: list[int]) -> None:
        """What the ranks have guessed behind the sequence's known tokens."""

    def verified(self, sequence: Sequence, num_drafts: int, num_right: int, num_tokens: int) -> None:
        """So many drafted tokens were right; the sequence has so many more, an ending within the run considered."""

    def ended(self, batch: Batch, draft_seconds: float) -> None:
        """A step has ended, and all that it brought is booked; so much of its time the ranks have taken to guess."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""

    def counters(self) -> dict[str, Any]:
        """What has come of it, by the names of quire.counters."""
        return {}

    def fail(self, reason: str) -> None:
        """Whoever guesses on the ranks does so no more."""
