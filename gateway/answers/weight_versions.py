"""Which weights computed the tokens of a choice."""

from __future__ import annotations

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
        ends = [start for _, start in self._begins[1:]] + [num_tokens]
        return tuple(
            WeightSpan(version, start, min(end, num_tokens))
            for (version, start), end in zip(self._begins, ends, strict=True)
            if start < num_tokens
        )
