"""What a benchmark asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One request.

    Attributes:
        prompt_tokens: with what the tokenizer puts around a prompt; 0 where they were not counted.
        output_tokens: at most.
    """

    prompt: str
    prompt_tokens: int
    output_tokens: int
