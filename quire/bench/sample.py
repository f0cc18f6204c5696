"""The requests of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One request.

    Attributes:
        prompt_tokens: including the special tokens around a prompt; 0 if not counted.
        output_tokens: maximum number of output tokens.
    """

    prompt: str
    prompt_tokens: int
    output_tokens: int
