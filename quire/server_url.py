"""Parses the address of a server, as clients are given it."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from quire.errors import StartupError
from quire.unix_socket import HOST, socket_path


def split_url(flag: str, url: str, example: str) -> SplitResult:
    """The parts of the address; for unix:PATH, those of the host that requests name there.

    Raises:
        StartupError: it is not a valid address.
    """
    try:
        parts = urlsplit(f"http://{HOST}" if socket_path(url) else url)
        host, port = (parts.hostname or "").encode("idna"), parts.port  # both raise ValueError if invalid
    except ValueError:
        host, port = b"", 0
    if not host or port == 0 or parts.scheme not in ("http", "https"):
        raise StartupError(f"{flag} {url or repr(url)}: expected an address such as {example}, or unix:PATH.")
    return parts
