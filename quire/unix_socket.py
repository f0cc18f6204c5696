"""Unix sockets for HTTP: created by servers, and addressed by clients as `unix:PATH`."""

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
# The host that requests name, as a Unix socket has none.
HOST = "localhost"
_BACKLOG = 1024
_CONNECT_SECONDS = 5.0


def socket_path(url: str) -> str:
    """The file that `unix:PATH` names; empty for any other address."""
    return url.removeprefix(SCHEME) if url.startswith(SCHEME) else ""


@contextlib.contextmanager
def unix_listener(path: str) -> Iterator[socket.socket]:
    """Listens on a Unix socket at `path`, whose file is removed at the end. The umask decides who may connect.

    Connections queue from now on until they are accepted. A stale file that nothing listens on is replaced.

    Raises:
        StartupError: another process listens there, or no socket can be created there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_stale(path)
            listener.bind(path)
        except OSError as error:
            raise StartupError(f"{FLAG} {path} cannot be listened on: {error.strerror or error}.") from error
        listener.listen(_BACKLOG)
        try:
            yield listener
        finally:
            listener.close()
            with contextlib.suppress(OSError, StartupError):  # it may belong to another process by now
                _remove_stale(path)


def _remove_stale(path: str) -> None:
    """Removes the file of a socket that nothing listens on.

    Raises:
        StartupError: it is not a socket, or one in use.
        OSError: it cannot be inspected or removed.
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"{FLAG} {path} is a file, not a socket; choose a path that does not exist yet.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError:  # its backlog is full, or it is another user's
            pass
    raise StartupError(f"{FLAG} {path} is in use by another process. Choose another.")


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__(HOST, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Opens the connection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
