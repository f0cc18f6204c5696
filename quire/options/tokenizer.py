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
    chat_template_content_format: str = option(
        "auto",
        "How the template gets a message's content: string (text parts joined by line breaks), openai (always the list "
        "of parts), or auto: the list, where a request sends one and the template has a loop over it, else a string.",
        choices=("auto", "string", "openai"),
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
