"""A drafter for real models: drafts their known outputs, with mistakes."""

from __future__ import annotations

import random

from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.drafter import Drafter


class ReplayingDrafter(Drafter):
    """Drafts the next tokens of each output that it knows, by the request's id.

    Args:
        vocab_size: ids below this are drawn for mistakes.
        most: the most tokens drafted at once; their number is random.
        right: the share of draft tokens that are right.
    """

    def __init__(self, vocab_size: int, most: int = 5, right: float = 0.8) -> None:
        self._outputs: dict[str, list[list[int]]] = {}
        self._vocab_size = vocab_size
        self._most = most
        self.right = right
        self._choose = random.Random(0)
        self.num_drafts = 0  # that were verified
        self.num_right = 0

    def know(self, requests: list[GenerationRequest], outputs: list[list[list[int]]]) -> None:
        """The outputs of requests, by choice."""
        self._outputs = {request.request_id: output for request, output in zip(requests, outputs, strict=True)}

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """See Drafter.propose."""
        choose, start = self._choose, sequence.num_output_tokens
        outputs = self._outputs.get(sequence.owner.request.request_id)
        known = outputs[sequence.choice_index] if outputs else []
        known = known[start : start + min(most, choose.randint(0, self._most))]
        return tuple(each if choose.random() < self.right else choose.randrange(self._vocab_size) for each in known)

    def verified(self, sequence: Sequence, num_drafts: int, num_right: int, num_tokens: int) -> None:
        """See Drafter.verified."""
        self.num_drafts += num_drafts
        self.num_right += num_right
