"""Which weights computed the tokens of a choice."""

from __future__ import annotations

from itertools import pairwise

from gateway.protocol.common import WeightSpan


class WeightVersions:
    """The versions of the weights that computed one choice's tokens, as they arrive."""

    def __init__(self) -> None:
        self._begins: list[tuple[str, int]] = []  # each version and its first token

    def add(self, version: str, start: int) -> None:
        """Adds tokens, the first of which has the number `start`."""
        if not self._begins or self._begins[-1][0] != version:
            self._begins.append((version, start))

    def spans(self, num_tokens: int) -> tuple[WeightSpan, ...]:
        """The spans of the first tokens, which are all that count: a stop string may have ended the choice earlier."""
        begins = [*((version, start) for version, start in self._begins if start < num_tokens), ("", num_tokens)]
        return tuple(WeightSpan(version, start, end) for (version, start), (_, end) in pairwise(begins))
