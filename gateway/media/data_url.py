"""Images, videos and audio within the request: `data:image/png;base64,…`, and videos as lists of frames."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gateway.media.kinds import DATA_URLS
from gateway.media.source import MediaSource
from quire.media import MediaKind

_HEADS: Mapping[MediaKind, re.Pattern[str]] = MappingProxyType({
    kind: re.compile(rf"data:({types}/[\w.+*-]+)?(;[\w-]+=[\w.+-]+)*;base64", re.ASCII | re.IGNORECASE)
    for kind, types in {
        MediaKind.IMAGE: "image", MediaKind.VIDEO: "(?:video|image)",
        MediaKind.AUDIO: "(?:audio|video)",  # WebM and MP4 files are often called videos
    }.items()
})  # fmt: skip
# Types of videos whose frames are sent one after the other, as images separated by commas.
_TYPES_OF_FRAMES = ("video/jpeg", "video/png", "video/webp")
_MAX_FRAMES = 768
_MAX_HEAD_CHARACTERS = 256
_QUICK_CHARACTERS = 64 * 1024  # take less time to decode than a thread to start


async def decode_tensors(source: MediaSource) -> tuple[bytes, ...]:
    """Returns the files of an image's tensors.

    Raises:
        InvalidRequest: one is not base64, or they are too large.
    """
    texts = [*source.tensors.values()]
    if sum(map(len, texts)) > _num_characters(source.most_bytes):
        raise source.too_large()
    return await asyncio.to_thread(_files, source, texts)


async def decode(source: MediaSource) -> tuple[bytes, ...]:
    """Returns the bytes of an image, a video or an audio in a data: URL: one file, or a video's frames.

    Raises:
        InvalidRequest: it is not of the kind in base64, or too large.
    """
    end = source.url.find(",", 0, _MAX_HEAD_CHARACTERS)
    head = _HEADS[source.kind].fullmatch(source.url, 0, end) if end >= 0 else None
    if not head:
        raise source.error(f"is a data: URL, which must begin like {DATA_URLS[source.kind]} and continue with base64.")
    are_frames = source.kind is MediaKind.VIDEO and (head[1] or "").lower() in _TYPES_OF_FRAMES
    # Each frame may end within a group of four characters, and has a comma.
    if len(source.url) - end > _num_characters(source.most_bytes) + (5 * _MAX_FRAMES if are_frames else 1):
        raise source.too_large()
    data = source.url[end + 1 :]
    if are_frames and data.count(",") >= _MAX_FRAMES:
        raise source.error(f"has {data.count(',') + 1} frames; at most {_MAX_FRAMES} are allowed. Send fewer of them.")
    texts = data.split(",") if are_frames else [data]
    if len(data) <= _QUICK_CHARACTERS:
        return _files(source, texts)
    return await asyncio.to_thread(_files, source, texts)


def _num_characters(num_bytes: int) -> int:
    """Length of so many bytes in base64."""
    return -(-num_bytes // 3) * 4


def _files(source: MediaSource, texts: Sequence[str]) -> tuple[bytes, ...]:
    """Decodes the file, or each frame or tensor."""
    files = []
    for index, text in enumerate(texts):
        try:
            files.append(base64.b64decode(text, validate=True))
        except ValueError as error:
            part = f", in {'tensor' if source.tensors else 'frame'} {index}" if len(texts) > 1 else ""
            raise source.error(
                f"is not valid base64 ({error}{part}). Encode the file in "
                "the standard alphabet, with padding and without line breaks."
            ) from None
    if sum(map(len, files)) > source.most_bytes:
        raise source.too_large()
    return tuple(files)
