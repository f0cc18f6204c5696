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
        False, "Dual batch overlap: runs a step with enough tokens as two halves; while one computes, the ranks "
        "exchange what the other half needs. For tensor-parallel ranks, and for data-parallel ranks that share "
        "experts.",
    )  # fmt: skip
    dbo_decode_token_threshold: int = option(
        32, "With --enable-dbo, steps in which all sequences decode are split if they have more tokens than this.",
        minimum=0,
    )  # fmt: skip
    dbo_prefill_token_threshold: int = option(
        512, "With --enable-dbo, steps with prompt tokens are split if they have more tokens than this.", minimum=0
    )

    def cuts(self, num_tokens: int, *, decodes_only: bool) -> bool:
        """Whether a step of `num_tokens` tokens is split. Both halves have at least one."""
        threshold = self.dbo_decode_token_threshold if decodes_only else self.dbo_prefill_token_threshold
        return self.enable_dbo and num_tokens > max(threshold, 1)
