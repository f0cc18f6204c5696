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


_IN_MESSAGES = "Quire's models read text, images, videos and audio, which come in messages"
_NO_OUTPUT = "Quire writes text only, and no audio"

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "functions": Refused("tools replaces it"),
        "function_call": Refused("tool_choice replaces it", ("none",)),
        "modalities": Refused(_NO_OUTPUT, (["text"],)),
        "audio": Refused(_NO_OUTPUT),
        "mm_payload": Refused(_IN_MESSAGES),
        "features": Refused(
            "it has the inputs of encoders as vLLM's processors make them; send images in messages of "
            "/v1/chat/completions, also as embeddings (image_embeds, with --enable-mm-embeds)"
        ),
        "content_parts": Refused(_IN_MESSAGES, ([],)),
        "ec_transfer_params": Refused(
            "it says at which of vLLM's encoders embeddings are; Quire's workers find those of --ec-transfer-config "
            "by themselves"
        ),
    }
)
