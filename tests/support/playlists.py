"""Files that have players read other files, and a server that shows whether they were asked for."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:2.5,\n{address}\n#EXT-X-ENDLIST\n"


@contextlib.contextmanager
def no_visitors() -> Iterator[str]:
    """The address of a server that nobody calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/part.ts"
        with pytest.raises(BlockingIOError):
            server.accept()
