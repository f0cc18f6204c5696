"""What a server without a tokenizer refuses: it takes and gives token ids."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.protocol.common import GenerationFields
from quire.errors import InvalidRequest
from quire.options.tokenizer_init import SKIP_FLAG

# Field of text → values that ask for nothing, besides null. Constraints are refused where they are compiled.
_TEXT_FIELDS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "stop": ("", []), "bad_words": ([],), "echo": (False,), "suffix": ("",), "return_prompt_text": (False,),
        "return_token_offsets": (False,),
    }
)  # fmt: skip


def needs_text(what: str, parameter: str = "") -> InvalidRequest:
    """
    Args:
        what: cannot be had without a tokenizer, in words.
    """
    return InvalidRequest(
        f"{what} cannot be had here: the server runs with {SKIP_FLAG}, without a tokenizer. Send the prompt as token "
        "ids to /v1/completions; answers hold token_ids.",
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
