"""An option shared by two services, so that `quire serve` passes it to both."""

from __future__ import annotations

from typing import Any

from quire.options.base import option

SKIP_FLAG = "--skip-tokenizer-init"


def skip_tokenizer_option() -> Any:
    """Declares --skip-tokenizer-init."""
    return option(
        False,
        "Serves token ids only: no tokenizer service is started or used, and no tokenizer files are read. Prompts are "
        "token ids, and answers contain token_ids. Whatever needs text is refused: chats, text prompts and stop "
        "strings, bad_words, echo, structured outputs, /tokenize and /detokenize.",
    )
