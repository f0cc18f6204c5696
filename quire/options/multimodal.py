"""Options of image input that several services share, and those of the tokenizer service and the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from quire.errors import StartupError
from quire.options.base import option

LIMIT_FLAG = "--limit-mm-per-prompt"
_MOST_IMAGES = 999
_IMAGES = ("image", "images")
_KINDS = (*_IMAGES, "video", "videos", "audio", "audios")


def limit_option() -> Any:
    """An option shared by the gateway, which counts images, and the engine, which needs no encoder without them."""
    return option(
        "", 'Maximum number of images in a prompt: \'{"image": 4}\' or image=4; 999 by default. 0 leaves the model\'s '
        "image encoder out of memory. Limits for video and audio are accepted, but Quire reads neither.",
        metavar="JSON|KIND=NUMBER,…",
    )  # fmt: skip


def most_images(limit: str) -> int:
    """The maximum number of images in a prompt.

    Args:
        limit: a value of the shared option.

    Raises:
        StartupError: it is malformed.
    """
    found = {}
    for kind, number in _pairs(limit):
        if kind not in _KINDS or not (isinstance(number, int) and number >= 0):
            raise _wrong(limit)
        found[kind] = number
    return next((found[kind] for kind in _IMAGES if kind in found), _MOST_IMAGES)


def _pairs(limit: str) -> list[tuple[str, Any]]:
    text = limit.strip()
    if not text:
        return []
    if text.startswith("{"):
        try:
            return list(json.loads(text).items())
        except ValueError:
            raise _wrong(limit) from None
    pairs = [part.partition("=") for part in text.split(",")]
    return [(kind.strip(), int(number) if number.strip().isdecimal() else None) for kind, _, number in pairs]


def _wrong(limit: str) -> StartupError:
    return StartupError(
        f"{LIMIT_FLAG} {limit[:100]}: write '{{\"image\": 4}}' or image=4, with a number from 0 for each of image, "
        "video and audio."
    )


@dataclass(frozen=True)
class ImageProcessorOptions:
    """Preparation of images."""

    group: ClassVar[str] = "MultiModalConfig"

    mm_processor_kwargs: dict[str, Any] = option(
        {}, 'Settings for the model\'s image processor, as JSON, such as {"size": {"longest_edge": 1003520}}; those '
        "that the model comes with are the defaults. They change how many tokens an image takes.",
    )  # fmt: skip
    mm_processor_cache_gb: float = option(
        4.0, "GiB of memory for images that have been prepared, so that those of a conversation are prepared once; 0 "
        "for none.", minimum=0.0, variables=("VLLM_MM_INPUT_CACHE_GIB",),
    )  # fmt: skip
    interleave_mm_strings: bool = option(
        False, "Where the chat template receives a message's content as a string: leaves images where they are among "
        "the texts, instead of placing them before all texts.",
    )  # fmt: skip


@dataclass(frozen=True)
class ImageEncoderOptions:
    """Image encoder of the model."""

    group: ClassVar[str] = "MultiModalConfig"

    limit_mm_per_prompt: str = limit_option()
