"""Requests of the simulation: which blocks their prompts consist of, and which tokens they must end up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_SIZE = 16
_KEY_MASK = (1 << 64) - 1
_TOKEN_MASK = (1 << 20) - 1


class Text:
    """A growing sequence of tokens, known by the keys of its blocks only. Equal texts have equal keys."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.keys: list[int] = []  # of the full blocks
        self._tail: tuple[tuple[int, int, int], ...] = ()  # (piece, from, tokens) that fill the last block in part
        self._tail_tokens = 0

    def copy(self) -> Text:
        """One that grows on its own."""
        other = Text()
        other.num_tokens, other.keys = self.num_tokens, list(self.keys)
        other._tail, other._tail_tokens = self._tail, self._tail_tokens
        return other

    def add(self, piece: int, num_tokens: int) -> Text:
        """Appends the whole piece of that number, and returns the text."""
        taken = 0
        while taken < num_tokens:
            count = min(BLOCK_SIZE - self._tail_tokens, num_tokens - taken)
            self._tail += ((piece, taken, count),)
            self._tail_tokens += count
            taken += count
            if self._tail_tokens == BLOCK_SIZE:
                parent = self.keys[-1] if self.keys else 0
                self.keys.append(hash((parent, self._tail)) & _KEY_MASK)  # of integers: the same in each process
                self._tail, self._tail_tokens = (), 0
        self.num_tokens += num_tokens
        return self


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request, and its answer."""

    number: int  # from 0; its place in the list of all requests
    keys: Sequence[int]  # of the full blocks of prompt and answer
    prompt_tokens: int
    output_tokens: int
    session_id: str = ""
    tenant: str = ""
    timeout_seconds: float = 0.0  # none
    abort_seconds: float = 0.0  # after so long the caller does not want it any more; never

    @property
    def total_tokens(self) -> int:
        """Of prompt and answer."""
        return self.prompt_tokens + self.output_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """The answer's tokens at some positions: nothing but request and position decides on them."""
        return [(self.number * 1_000_003 + position * 7_919) & _TOKEN_MASK for position in range(start, stop)]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests of which each comes a while after the answer to the one before."""

    # Arrival of the first request, as a share of the trace's length.
    start: float
    # (seconds to think before it, request)
    turns: Sequence[tuple[float, SimRequest]]
