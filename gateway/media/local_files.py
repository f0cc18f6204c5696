"""Images, videos and audio in the folder that the operator has opened to requests: `file:///folder/image.png`."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from urllib.parse import unquote

from gateway.media.source import MediaSource

_PREFIX = "file://"
_HOSTS = ("", "localhost")


class LocalFiles:
    """The files of one folder."""

    def __init__(self, folder: str) -> None:
        """
        Args:
            folder: empty for none.
        """
        self._folder = folder

    async def read(self, source: MediaSource) -> bytes:
        """Returns the bytes of the file.

        Raises:
            InvalidRequest: no folder is open to requests, the file is too large, or it is not a readable file in the
                folder; whether a file outside of the folder exists is not revealed.
        """
        if not self._folder:
            raise source.error(
                "is a file:// URL, which is only accepted by servers that are started with --allowed-local-media-path. "
                f"Send the {source.kind} as a data: URL."
            )
        try:
            data = await asyncio.to_thread(_read, Path(self._folder), _path(source.url), source.most_bytes)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: symbolic links in a circle
            raise source.error(
                f"({source.shown}) is not a readable file in the folder of --allowed-local-media-path. Write the URL "
                "as file:// and an absolute path, percent-encoded."
            ) from None
        if len(data) > source.most_bytes:
            raise source.too_large()
        return data


def _path(url: str) -> Path:
    """
    Raises:
        ValueError: the URL names another machine, or has no absolute path.
    """
    host, slash, path = url[len(_PREFIX) :].partition("/")
    if url[: len(_PREFIX)].lower() != _PREFIX or host.lower() not in _HOSTS or not slash:
        raise ValueError("not an absolute path on this machine")
    return Path(slash + unquote(path, errors="strict"))


def _read(folder: Path, path: Path, most_bytes: int) -> bytes:
    """The file's bytes, up to one more than the limit.

    Raises:
        OSError, ValueError, RuntimeError: it is not a readable file in the folder.
    """
    resolved = path.resolve(strict=True)
    if not resolved.is_relative_to(folder.resolve(strict=True)):
        raise ValueError("outside of the folder")
    # Without O_NONBLOCK, opening a FIFO would wait for its writer.
    descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
