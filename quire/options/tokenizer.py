"""Options of the tokenizer service."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.options.base import option
from quire.options.multimodal import ImageProcessorOptions
from quire.options.structured_outputs import StructuredOutputsOptions


@dataclass(frozen=True)
class TokenizerOptions:
    """Chat template and tokenizer limits."""

    chat_template: str | None = option(
        None,
        "Chat template to use instead of the model's: a file, or the template itself on one line.",
        metavar="PATH|TEXT",
    )
    chat_template_content_format: str = option(
        "auto",
        "How the template receives a message's content: string (text parts joined by line breaks), openai (the list of "
        "parts, also if a request sends a string), or auto: as a request sends it if the template loops over it and "
        "asks whether it is a string, the list if it only loops over it, else a string.",
        choices=("auto", "string", "openai"),
    )
    trust_request_chat_template: bool = option(
        False, "Allows requests to bring their own chat template, which is executed in a sandbox."
    )
    chat_template_timeout_seconds: float = option(
        2.0, "Maximum time to render one conversation.", minimum=0.05, maximum=30.0
    )
    max_prompt_chars: int = option(
        4_000_000,
        "Maximum length of a text to encode, and of a rendered conversation, in characters.",
        minimum=1,
        maximum=4_000_000,
    )
    images: ImageProcessorOptions = ImageProcessorOptions()
    structured_outputs: StructuredOutputsOptions = field(default_factory=StructuredOutputsOptions)
