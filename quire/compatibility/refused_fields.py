"""Fields that clients of other servers send to request what Quire does not support: refused, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Refused:
    """Why a field is refused."""

    why: str
    neutral: tuple[Any, ...] = ()  # values that ask for nothing, besides null


_TEXT_ONLY = "Quire's models read and write text only"
_NO_TRANSFER = "Quire moves no KV cache between servers on a client's word"

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "functions": Refused("tools have taken its place; send them there"),
        "function_call": Refused("tool_choice has taken its place; send it there", ("none",)),
        "modalities": Refused(_TEXT_ONLY, (["text"],)),
        "audio": Refused(_TEXT_ONLY),
        "media_io_kwargs": Refused(_TEXT_ONLY, ({},)),
        "mm_processor_kwargs": Refused(_TEXT_ONLY, ({},)),
        "mm_payload": Refused(_TEXT_ONLY),
        "features": Refused(_TEXT_ONLY),
        "content_parts": Refused(_TEXT_ONLY, ([],)),
        "kv_transfer_params": Refused(_NO_TRANSFER),
        "ec_transfer_params": Refused(_NO_TRANSFER),
        "return_token_offsets": Refused("the offsets of tokens are told by no endpoint", (False,)),
        "return_weight_versions": Refused("weights do not change while a server runs", (False,)),
        "routed_experts_prompt_start": Refused("which experts a token went to is not recorded", (0,)),
        "watermarking": Refused("Quire marks no output", (False,)),
    }
)
