"""Remote inputs and outputs of a batch: downloaded before the first request, uploaded after the last."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from quire.errors import StartupError

_TIMEOUT = httpx.Timeout(30.0, read=300.0, write=300.0)
_TRIES = 4


def is_address(place: str) -> bool:
    """Whether a place is an HTTP URL."""
    return place.startswith(("http://", "https://"))


def file_name(address: str) -> str:
    """A local file name for a URL, without the part that may contain a signature."""
    parts = urlsplit(address)
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{parts.netloc}{parts.path}").strip("-.")[-128:] or "batch"


def fetch(address: str, to: Path) -> None:
    """Downloads a file.

    Raises:
        StartupError: the download failed.
    """
    part = to.with_name(f"{to.name}.part")
    try:
        with httpx.stream("GET", address, timeout=_TIMEOUT, follow_redirects=True) as answer:
            answer.raise_for_status()
            with part.open("wb") as file:
                for piece in answer.iter_bytes():
                    file.write(piece)
    except (httpx.HTTPError, OSError) as error:
        part.unlink(missing_ok=True)
        raise StartupError(f"--input-file {shown(address)} cannot be fetched: {_reason(error)}.") from error
    part.replace(to)


def send(path: Path, address: str) -> None:
    """Uploads a file, with retries.

    Raises:
        StartupError: the upload failed. The file stays where it is.
    """
    failure: httpx.HTTPError | None = None
    for _ in range(_TRIES):
        try:
            with path.open("rb") as file:
                httpx.put(address, content=file, timeout=_TIMEOUT, follow_redirects=True).raise_for_status()
            return
        except httpx.HTTPError as error:
            failure = error
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                break
    assert failure is not None
    raise StartupError(
        f"--output-file {shown(address)}: the answers cannot be uploaded: {_reason(failure)}. They are in {path}."
    ) from failure


def shown(address: str) -> str:
    """A URL without the parts that may be secret."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _reason(error: httpx.HTTPError | OSError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP status {error.response.status_code}"
    return str(error) or type(error).__name__
