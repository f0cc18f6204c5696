"""What speculation has brought since an engine's start."""

from __future__ import annotations

from typing import Any

from quire.bounds import MAX_SPECULATIVE_TOKENS
from quire.histogram import Histogram


class SpeculationStatistics:
    """Counters: they only grow."""

    def __init__(self) -> None:
        self.draft_tokens = 0  # that were verified
        self.emitted_tokens = 0  # of sequences in the steps in which drafts of theirs were verified
        # Of each verified draft, its first tokens that were right.
        self.accepted_tokens = Histogram(range(MAX_SPECULATIVE_TOKENS + 1))
        self.failures = 0  # of whoever guesses
        self._told = (0, 0, 0)

    def note(self, num_drafts: int, num_right: int, num_tokens: int) -> None:
        """So many tokens were drafted of a sequence, so many of the first ones were right, and so many came of it."""
        self.draft_tokens += num_drafts
        self.emitted_tokens += num_tokens
        self.accepted_tokens.observe(num_right)

    def counters(self) -> dict[str, Any]:
        """By the names of quire.counters."""
        return {
            "draft_tokens": self.draft_tokens,
            "draft_emitted_tokens": self.emitted_tokens,
            "draft_accepted_tokens": self.accepted_tokens.snapshot(),
            "draft_failures": self.failures,
        }

    def news(self) -> str:
        """What has come since the last call, in words for the log; empty where nothing was guessed."""
        accepted = self.accepted_tokens.snapshot()
        now = sum(accepted.counts), self.draft_tokens, int(accepted.sum)
        drafts, tokens, right = (new - old for new, old in zip(now, self._told, strict=True))
        self._told = now
        if not drafts:
            return ""
        return (
            f"speculation: {drafts:,} guesses of {tokens / drafts:.1f} tokens were verified, and {right / tokens:.0%} "
            f"of these right: {1 + right / drafts:.2f} tokens of a sequence in such a step"
        )
