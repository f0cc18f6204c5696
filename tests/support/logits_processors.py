"""Logits processors as operators write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quire.logits_processor import LogitsProcessor


class OnlyMultiples(LogitsProcessor):
    """For requests with `multiple` in their vllm_xargs: allows only multiples of it."""

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple

    @classmethod
    def for_request(cls, xargs: Mapping[str, Any]) -> LogitsProcessor | None:
        return cls(xargs["multiple"]) if "multiple" in xargs else None

    def apply(self, token_ids: torch.Tensor, num_prompt_tokens: int, logits: torch.Tensor) -> torch.Tensor:
        others = torch.arange(len(logits), device=logits.device) % self._multiple != 0
        return logits.masked_fill_(others, -torch.inf)


class Successor(LogitsProcessor):
    """Makes each token the previous one plus a step; after `count` tokens, logits are no longer changed."""

    def __init__(self, step: int, count: int = 1000) -> None:
        self._step = step
        self._count = count

    def apply(self, token_ids: torch.Tensor, num_prompt_tokens: int, logits: torch.Tensor) -> torch.Tensor:
        if len(token_ids) - num_prompt_tokens >= self._count:
            return logits
        found = torch.full_like(logits, -torch.inf)
        found[(token_ids[-1] + self._step) % len(logits)] = 0.0
        return found


class Broken(LogitsProcessor):
    """Misbehaves in a chosen way."""

    def __init__(self, how: str = "raises") -> None:
        self._how = how

    def apply(self, token_ids: torch.Tensor, num_prompt_tokens: int, logits: torch.Tensor) -> Any:
        found = {"none": None, "short": logits[:-1], "nan": logits * torch.nan, "row": logits[None], "int": 3}
        return found[self._how]


class Abstract(LogitsProcessor):
    """Does not implement the abstract methods."""


def not_a_class() -> None:
    """A function where a class is expected."""


class Counted(LogitsProcessor):
    """Allows one token, whose id is ten times the number of prompt tokens plus the number of all tokens."""

    def apply(self, token_ids: torch.Tensor, num_prompt_tokens: int, logits: torch.Tensor) -> torch.Tensor:
        found = torch.full_like(logits, -torch.inf)
        found[10 * num_prompt_tokens + len(token_ids)] = 0.0
        return found
