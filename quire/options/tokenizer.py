"""Options of the tokenizer service."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.options.base import option
from quire.options.structured_outputs import StructuredOutputsOptions


@dataclass(frozen=True)
class TokenizerOptions:
    """Which chat template, and how much a request may ask of it and of the tokenizer."""

    chat_template: str | None = option(
        None, "Chat template in place of the model's: a file, or the template itself on one line.", metavar="PATH|TEXT"
    )
    trust_request_chat_template: bool = option(
        False, "Lets requests bring their own chat template; it runs sandboxed, but it runs."
    )
    chat_template_timeout_seconds: float = option(
        2.0, "Longest time that rendering one conversation may take.", minimum=0.05, maximum=30.0
    )
    max_prompt_chars: int = option(
        4_000_000,
        "Longest text to encode, and longest rendered conversation, in characters.",
        minimum=1,
        maximum=4_000_000,
    )
    structured_outputs: StructuredOutputsOptions = field(default_factory=StructuredOutputsOptions)
