"""Index of earlier answers, separate for each tenant, in bounded memory."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from engine_svc.speculative.token_index import TokenIndex

BOUNDARY = -1  # separates answers, and matches no token
_MOST_PENDING = 64  # answers waiting to be indexed; when there are more, the oldest are dropped


class Generation:
    """A range of consecutive answers; answers of a tenant are only found by that tenant."""

    def __init__(self, width: int) -> None:
        self.tokens = array("i")
        self.index = TokenIndex(self.tokens, width)
        self.num_answers = 0
        self._groups: dict[str, int] = {}

    def group(self, tenant: str) -> int | None:
        """Group number of a tenant; None if it has no answers here."""
        return self._groups.get(tenant)

    def enter(self, tenant: str) -> int:
        """Counts a new answer of a tenant; returns the tenant's group number."""
        self.num_answers += 1
        return self._groups.setdefault(tenant, len(self._groups) + 1)


class Answers:
    """Keeps two generations: when the younger holds half of the maximum, it replaces the older, which is forgotten."""

    def __init__(self, width: int, most_answers: int, most_tokens: int) -> None:
        """
        Args:
            most_answers: maximum over all tenants; 0 keeps none.
            most_tokens: maximum over all answers.
        """
        self._width = width
        self._most_answers = most_answers
        self._most_tokens = most_tokens
        self._pending: deque[tuple[str, Sequence[int]]] = deque(maxlen=_MOST_PENDING)
        self.generations = [Generation(width)]  # the younger one first

    @property
    def num_tokens(self) -> int:
        """Number of tokens kept."""
        return sum(len(generation.tokens) for generation in self.generations)

    def add(self, tenant: str, token_ids: Sequence[int]) -> None:
        """Queues an answer that has ended for indexing."""
        if self._most_answers and len(token_ids) > self._width:
            self._pending.append((tenant, token_ids[: self._most_tokens // 2]))

    def take_in(self, budget: int) -> None:
        """Indexes waiting answers of about `budget` tokens; an answer is never left half indexed."""
        while self._pending and budget > 0:
            tenant, token_ids = self._pending.popleft()
            young = self._room(len(token_ids))
            young.tokens.append(BOUNDARY)
            young.tokens.extend(token_ids)
            budget -= young.index.take_in(len(token_ids) + 1, young.enter(tenant))

    def _room(self, num_tokens: int) -> Generation:
        """The generation that an answer of this length is added to."""
        young = self.generations[0]
        is_full = len(young.tokens) + num_tokens >= self._most_tokens // 2
        if young.num_answers and (is_full or 2 * young.num_answers >= self._most_answers):
            young = Generation(self._width)
            self.generations = [young, self.generations[0]]
        return young
