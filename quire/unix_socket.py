"""Unix sockets that HTTP is served at: made by whoever listens, found by clients as `unix:PATH`."""

from __future__ import annotations

import contextlib
import http.client
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from quire.errors import StartupError

FLAG = "--uds"
SCHEME = "unix:"
# What requests name as their host: who listens at a file has none.
HOST = "localhost"
_BACKLOG = 1024
_CONNECT_SECONDS = 5.0


def socket_path(url: str) -> str:
    """The file that `unix:PATH` names; empty for any other address."""
    return url.removeprefix(SCHEME) if url.startswith(SCHEME) else ""


@contextlib.contextmanager
def unix_listener(path: str) -> Iterator[socket.socket]:
    """A socket that listens at a file, which is gone afterwards. Who may connect is what the umask leaves.

    Connections wait from now on, until somebody takes them. A file that nobody listens at any more is replaced.

    Raises:
        StartupError: somebody listens there, or no socket can be made there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_stale(path)
            listener.bind(path)
        except OSError as error:
            raise StartupError(f"{FLAG} {path} cannot be listened at: {error.strerror or error}.") from error
        listener.listen(_BACKLOG)
        try:
            yield listener
        finally:
            listener.close()
            with contextlib.suppress(OSError, StartupError):  # it may be another's by now
                _remove_stale(path)


def _remove_stale(path: str) -> None:
    """
    Raises:
        StartupError: it is not a socket, or one that is in use.
        OSError: it cannot be looked at or removed.
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"{FLAG} {path} is a file and no socket; name one that is not there yet.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError:  # it is full, or another user's
            pass
    raise StartupError(f"{FLAG} {path} is in use by another process. Choose another.")


class UnixConnection(http.client.HTTPConnection):
    """HTTP to whoever listens at a file."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__(HOST, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connects."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
