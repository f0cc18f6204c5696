"""Images within the request: `data:image/png;base64,…`."""

from __future__ import annotations

import asyncio
import base64
import re

from gateway.media.source import ImageSource
from quire.images import MAX_IMAGE_BYTES

_HEAD = re.compile(r"data:(image/[\w.+*-]+)?(;[\w-]+=[\w.+-]+)*;base64", re.ASCII | re.IGNORECASE)
_MAX_HEAD_CHARACTERS = 256
_MAX_CHARACTERS = -(-MAX_IMAGE_BYTES // 3) * 4
_QUICK_CHARACTERS = 64 * 1024  # take less time to decode than a thread to start


async def decode(source: ImageSource) -> bytes:
    """Returns the bytes of an image in a data: URL.

    Raises:
        InvalidRequest: it is not an image in base64, or too large.
    """
    end = source.url.find(",", 0, _MAX_HEAD_CHARACTERS)
    if end < 0 or not _HEAD.fullmatch(source.url, 0, end):
        raise source.error("is a data: URL, which must begin like data:image/png;base64, and continue with base64.")
    if len(source.url) - end - 1 > _MAX_CHARACTERS:
        raise source.too_large()
    data = source.url[end + 1 :]
    try:
        if len(data) <= _QUICK_CHARACTERS:
            return base64.b64decode(data, validate=True)
        return await asyncio.to_thread(base64.b64decode, data, validate=True)
    except ValueError as error:
        raise source.error(
            f"is not valid base64 ({error}). Encode the file in the standard alphabet, with padding and without line "
            "breaks."
        ) from None
