"""Statistics of speculation since the engine's start."""

from __future__ import annotations

from typing import Any

from quire.bounds import MAX_SPECULATIVE_TOKENS
from quire.histogram import Histogram


class SpeculationStatistics:
    """Monotonic counters of speculation."""

    def __init__(self) -> None:
        self.draft_tokens = 0  # drafted tokens that were verified
        self.emitted_tokens = 0  # tokens of sequences in steps that verified drafts of theirs
        # For each verified draft, how many of its tokens were accepted.
        self.accepted_tokens = Histogram(range(MAX_SPECULATIVE_TOKENS + 1))
        self.failures = 0  # failures of the drafting method
        self._told = (0, 0, 0)

    def note(self, num_drafts: int, num_right: int, num_tokens: int) -> None:
        """Records a verified draft: `num_right` of `num_drafts` tokens were accepted, and `num_tokens` emitted."""
        self.draft_tokens += num_drafts
        self.emitted_tokens += num_tokens
        self.accepted_tokens.observe(num_right)

    def counters(self) -> dict[str, Any]:
        """The counters, by the names of quire.counters."""
        return {
            "draft_tokens": self.draft_tokens,
            "draft_emitted_tokens": self.emitted_tokens,
            "draft_accepted_tokens": self.accepted_tokens.snapshot(),
            "draft_failures": self.failures,
        }

    def news(self) -> str:
        """A log line about the drafts since the last call; empty if there were none."""
        accepted = self.accepted_tokens.snapshot()
        now = sum(accepted.counts), self.draft_tokens, int(accepted.sum)
        drafts, tokens, right = (new - old for new, old in zip(now, self._told, strict=True))
        self._told = now
        if not drafts:
            return ""
        return (
            f"speculation: {drafts:,} drafts of {tokens / drafts:.1f} tokens were verified, and {right / tokens:.0%} "
            f"of these tokens were right: {1 + right / drafts:.2f} tokens per sequence and step"
        )
