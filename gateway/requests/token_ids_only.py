"""Rejects requests for text on a server without a tokenizer, which takes and returns token ids."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.protocol.common import GenerationFields
from quire.errors import InvalidRequest
from quire.options.tokenizer_init import SKIP_FLAG

# Text field → neutral values, besides null. Constraints are rejected where they are compiled.
_TEXT_FIELDS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "stop": ("", []), "bad_words": ([],), "echo": (False,), "suffix": ("",), "return_prompt_text": (False,),
        "return_token_offsets": (False,),
    }
)  # fmt: skip


def needs_text(what: str, parameter: str = "") -> InvalidRequest:
    """Returns the error for something that needs a tokenizer.

    Args:
        what: name of what is unavailable, for the message.
    """
    return InvalidRequest(
        f"{what} needs a tokenizer, but the server runs without one ({SKIP_FLAG}). Send the prompt as token ids to "
        "/v1/completions; answers contain token_ids.",
        parameter=parameter,
    )


def check_token_ids_only(body: GenerationFields) -> None:
    """
    Raises:
        InvalidRequest: a field is about text; names it.
    """
    for name, neutral in _TEXT_FIELDS.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise needs_text(name, name)
