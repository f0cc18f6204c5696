"""How messages to callers name each kind of media."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.media import MediaKind

NOUNS: Mapping[MediaKind, str] = MappingProxyType({
    MediaKind.IMAGE: "an image", MediaKind.VIDEO: "a video", MediaKind.AUDIO: "an audio",
})  # fmt: skip
PLURALS: Mapping[MediaKind, str] = MappingProxyType({
    MediaKind.IMAGE: "images", MediaKind.VIDEO: "videos", MediaKind.AUDIO: "audio files",
})  # fmt: skip
# How a data: URL begins.
DATA_URLS: Mapping[MediaKind, str] = MappingProxyType({
    MediaKind.IMAGE: "data:image/png;base64,", MediaKind.VIDEO: "data:video/mp4;base64,",
    MediaKind.AUDIO: "data:audio/wav;base64,",
})  # fmt: skip
