"""Certificates that are renewed while the server runs: new connections get the new ones."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from quire.certificates import server_context
from quire.errors import StartupError
from quire.options.gateway import GatewayOptions

logger = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_Stamp = tuple[tuple[int, int], ...]


class Certificates:
    """The files that a server's TLS is made of."""

    def __init__(self, tls: ssl.SSLContext, options: GatewayOptions) -> None:
        """
        Args:
            tls: of the server, which has read the files; it hands new connections to what was read last.
        """
        self._latest, self._options = tls, options
        self._stamp = self._look()
        tls.sni_callback = self._hand_over
        if options.ssl_ca_certs:  # who takes up a session again shows no certificate
            tls.options |= ssl.OP_NO_TICKET
            tls.num_tickets = 0

    async def watch(self) -> None:
        """Reads the files again when they have changed, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Reads them again if they have changed. Those that cannot be read, or do not go together, change nothing."""
        if (stamp := self._look()) == self._stamp:
            return
        options = self._options
        try:
            self._latest = server_context(options.ssl_certfile or "", options.ssl_keyfile or "", options.ssl_ca_certs)
        except StartupError as error:
            logger.warning("the certificates have changed and cannot be read; the old ones stay: %s", error)
            return
        self._stamp = stamp
        logger.info("the certificates were read again")

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, tls: ssl.SSLContext) -> int | None:
        """A new connection to the context that was read last, whatever name of the server it asks for.

        A context cannot forget an authority, so that each change makes a new one. Nor can it forget sessions that
        clients of TLS 1.2 take up without a ticket: their authority may be gone, and they have to begin anew.
        """
        if connection.session_reused and self._options.ssl_ca_certs and self._latest is not tls:
            return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
        connection.context = self._latest
        return None

    def _look(self) -> _Stamp:
        options = self._options
        paths = [path for path in (options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs) if path]
        return tuple(_stamp(Path(path)) for path in paths)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:  # about to be replaced
        return 0, 0
    return found.st_mtime_ns, found.st_size
