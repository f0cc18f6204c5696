"""An option shared by two services, so that `quire serve` passes it to both."""

from __future__ import annotations

from typing import Any

from quire.options.base import option

SKIP_FLAG = "--skip-tokenizer-init"


def skip_tokenizer_option() -> Any:
    """Declares --skip-tokenizer-init."""
    return option(
        False,
        "Serves token ids alone: no tokenizer service is started or asked, and no tokenizer's files are read. Prompts "
        "come as token ids and answers hold token_ids. What needs text is refused: chats, prompts and stop strings as "
        "text, bad_words, echo, structured output, /tokenize and /detokenize.",
    )
