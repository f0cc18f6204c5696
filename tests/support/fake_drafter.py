"""A drafter that is right as often as its author wants, for the fake executor to verify."""

from __future__ import annotations

from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.drafter import Drafter
from tests.support.fake_executor import expected_tokens


class FakeDrafter(Drafter):
    """Drafts up to `most` tokens: first right ones, then wrong ones.

    Args:
        right: how many draft tokens are right; by default, this and their number follow from the sequence.
    """

    def __init__(self, vocab_size: int, most: int, right: int | None = None) -> None:
        self._vocab_size = vocab_size
        self._most = most
        self._right = right

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """See Drafter.propose."""
        choice = 31 * len(sequence.token_ids) + sequence.token_ids[-1]
        count = min(most, self._most if self._right is not None else choice % (self._most + 1))
        right = choice // 7 % (count + 1) if self._right is None else self._right
        tokens = expected_tokens(sequence.token_ids, count, self._vocab_size, sequence.sampling)
        return tuple((token + (index >= right)) % self._vocab_size for index, token in enumerate(tokens))
