"""The contract of whatever guesses the tokens that come next, for the model to verify in one step."""

from __future__ import annotations

from typing import Protocol

from engine_svc.requests.sequence import Sequence


class Drafter(Protocol):
    """Asked for a sequence before each step that samples from its last token, all of its tokens being known."""

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """The tokens that may follow the sequence's, `most` at most (1 or more); none where it has no idea."""
