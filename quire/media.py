"""Kinds of media in conversations, and how large their files may be."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class MediaKind(enum.StrEnum):
    """What a message part is, besides text; the values are those of parts for chat templates."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


# The variable of chat templates that asks Voxtral for the words of an audio, which is then all of the conversation. Its
# value is the code of their language, or empty.
TRANSCRIPTION = "transcription"
# Limit for all files of a conversation: a message on the wire has room for this and the rest of a request.
MAX_FILES_BYTES = 48 * 2**20
# Limits for one file, such as a PNG.
MAX_FILE_BYTES: Mapping[MediaKind, int] = MappingProxyType({
    MediaKind.IMAGE: 12 * 2**20, MediaKind.VIDEO: 40 * 2**20,
    MediaKind.AUDIO: 25 * 2**20,
})  # fmt: skip
# Limit for the embeddings of an image: with 16 bits for a value, twice as much for the engine (see MAX_IMAGES_BYTES).
MAX_EMBEDS_BYTES = 24 * 2**20

# A multiple of all usual numbers of tokens in a block.
_ENCODER_TOKENS = 128


def filled_up(num_rows: int) -> int:
    """The tokens that a prompt of an encoder-decoder model has for a recording's rows.

    They fill whole blocks, so that prompts about the same recording share all of it in the prefix cache.
    """
    return -(-num_rows // _ENCODER_TOKENS) * _ENCODER_TOKENS
