"""Certificates that are renewed while the server runs: new connections get the new ones."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from quire.options.gateway import GatewayOptions

logger = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_Stamp = tuple[tuple[int, int], ...]


class Certificates:
    """The files that a server's TLS is made of."""

    def __init__(self, tls: ssl.SSLContext, options: GatewayOptions) -> None:
        """
        Args:
            tls: of the server, which has read the files.
        """
        self._tls, self._options = tls, options
        self._stamp = self._look()

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
            self._check()
            self._tls.load_cert_chain(options.ssl_certfile or "", options.ssl_keyfile)
            if options.ssl_ca_certs:
                self._tls.load_verify_locations(options.ssl_ca_certs)
        except OSError as error:  # ssl.SSLError too
            logger.warning("the certificates have changed and cannot be read; the old ones stay: %s", error)
            return
        self._stamp = stamp
        logger.info("the certificates were read again")

    def _check(self) -> None:
        """In a context of its own: half of a change would otherwise be made."""
        options, probe = self._options, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        probe.load_cert_chain(options.ssl_certfile or "", options.ssl_keyfile)
        if options.ssl_ca_certs:
            probe.load_verify_locations(options.ssl_ca_certs)

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
