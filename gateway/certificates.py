"""Reloads TLS certificates while the server runs; new connections use the new ones."""

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
    """The certificate, key and CA files of a server's TLS context."""

    def __init__(self, tls: ssl.SSLContext, options: GatewayOptions) -> None:
        """
        Args:
            tls: the server's context, loaded from the current files; it passes new connections to the context loaded
                last.
        """
        self._latest, self._options = tls, options
        self._stamp = self._look()
        tls.sni_callback = self._hand_over
        if options.ssl_ca_certs:  # a client that resumes a session presents no certificate
            tls.options |= ssl.OP_NO_TICKET
            tls.num_tickets = 0

    async def watch(self) -> None:
        """Reloads the files whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Reloads the files if they have changed. If they are unreadable or inconsistent, the old ones stay in use."""
        if (stamp := self._look()) == self._stamp:
            return
        options = self._options
        try:
            self._latest = server_context(options.ssl_certfile or "", options.ssl_keyfile or "", options.ssl_ca_certs)
        except StartupError as error:
            logger.warning("the certificates have changed but cannot be read; keeping the old ones: %s", error)
            return
        self._stamp = stamp
        logger.info("the certificates were reloaded")

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, tls: ssl.SSLContext) -> int | None:
        """SNI callback: switches a new connection to the context loaded last, whatever server name it asks for.

        A context cannot drop a CA once loaded, so each change creates a new context. Nor can it drop sessions that TLS
        1.2 clients resume without a ticket: their CA may have been removed, so they have to do a full handshake.
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
    except OSError:  # it is just being replaced
        return 0, 0
    return found.st_mtime_ns, found.st_size
