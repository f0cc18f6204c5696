"""Options of dual batch overlap: steps split into halves, one of which computes while the other's ranks communicate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option


@dataclass(frozen=True)
class DualBatchOptions:
    """Dual batch overlap."""

    group: ClassVar[str] = "ParallelConfig"

    enable_dbo: bool = option(
        False, "Dual batch overlap: a step with enough tokens runs as two halves, of which one computes while ranks "
        "send each other what the other half needs. For tensor ranks, and data ranks that share experts.",
    )  # fmt: skip
    dbo_decode_token_threshold: int = option(
        32, "With --enable-dbo, steps of more tokens than this are cut in two, where all of their sequences decode.",
        minimum=0,
    )  # fmt: skip
    dbo_prefill_token_threshold: int = option(
        512, "With --enable-dbo, steps of more tokens than this are cut in two, where some are of prompts.", minimum=0
    )

    def cuts(self, num_tokens: int, *, decodes_only: bool) -> bool:
        """Whether a step of `num_tokens` tokens is split. Both halves have at least one."""
        threshold = self.dbo_decode_token_threshold if decodes_only else self.dbo_prefill_token_threshold
        return self.enable_dbo and num_tokens > max(threshold, 1)
