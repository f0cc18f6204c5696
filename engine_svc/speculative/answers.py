"""Earlier answers, indexed for those who may see them, in bounded memory."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from engine_svc.speculative.token_index import TokenIndex

BOUNDARY = -1  # stands between answers, and matches no token
_MOST_PENDING = 64  # answers that wait to be taken in; more at a time are passed over


class Generation:
    """Answers that came in a row; those of a tenant are found by that tenant alone."""

    def __init__(self, width: int) -> None:
        self.tokens = array("i")
        self.index = TokenIndex(self.tokens, width)
        self.num_answers = 0
        self._groups: dict[str, int] = {}

    def group(self, tenant: str) -> int | None:
        """The number of a tenant that has answers here."""
        return self._groups.get(tenant)

    def enter(self, tenant: str) -> int:
        """The number of a tenant who begins an answer."""
        self.num_answers += 1
        return self._groups.setdefault(tenant, len(self._groups) + 1)


class Answers:
    """Two generations: when the younger is half of what may be kept, it becomes the older, which is forgotten."""

    def __init__(self, width: int, most_answers: int, most_tokens: int) -> None:
        """
        Args:
            most_answers: of all tenants; 0 keeps none.
            most_tokens: of all answers.
        """
        self._width = width
        self._most_answers = most_answers
        self._most_tokens = most_tokens
        self._pending: deque[tuple[str, Sequence[int]]] = deque(maxlen=_MOST_PENDING)
        self.generations = [Generation(width)]  # the younger one first

    @property
    def num_tokens(self) -> int:
        """Tokens kept."""
        return sum(len(generation.tokens) for generation in self.generations)

    def add(self, tenant: str, token_ids: Sequence[int]) -> None:
        """An answer that has ended."""
        if self._most_answers and len(token_ids) > self._width:
            self._pending.append((tenant, token_ids[: self._most_tokens // 2]))

    def take_in(self, budget: int) -> None:
        """Indexes answers that wait, of about so many tokens; one is never left half done."""
        while self._pending and budget > 0:
            tenant, token_ids = self._pending.popleft()
            young = self._room(len(token_ids))
            young.tokens.append(BOUNDARY)
            young.tokens.extend(token_ids)
            budget -= young.index.take_in(len(token_ids) + 1, young.enter(tenant))

    def _room(self, num_tokens: int) -> Generation:
        """The generation that takes an answer in."""
        young = self.generations[0]
        is_full = len(young.tokens) + num_tokens >= self._most_tokens // 2
        if young.num_answers and (is_full or 2 * young.num_answers >= self._most_answers):
            young = Generation(self._width)
            self.generations = [young, self.generations[0]]
        return young
