"""Reloads TLS certificates while the server runs; new connections use the new ones."""

from __future__ import annotations

import ssl

from quire.certificates import load_certificates, use
from quire.options.gateway import GatewayOptions
from quire.watched_files import WatchedFiles

_NAME = "certificates"


def use_certificates(options: GatewayOptions) -> ssl.SSLContext:
    """A TLS context with the current files, whose expiry is measured from now on.

    Raises:
        StartupError: they cannot be used.
    """
    return use(
        _NAME,
        load_certificates(
            "--ssl", options.ssl_certfile or "", options.ssl_keyfile or "", options.ssl_ca_certs, options.ssl_ciphers
        ),
    ).context


class Certificates:
    """The certificate, key and CA files of a server's TLS context."""

    def __init__(self, tls: ssl.SSLContext, options: GatewayOptions) -> None:
        """
        Args:
            tls: the server's context, loaded from the current files; it passes new connections to the context loaded
                last.
        """
        self._latest, self._options = tls, options
        paths = [path for path in (options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs) if path]
        self.files = WatchedFiles(_NAME, paths, self._load)
        tls.sni_callback = self._hand_over
        if options.ssl_ca_certs:  # a client that resumes a session presents no certificate
            tls.options |= ssl.OP_NO_TICKET
            tls.num_tickets = 0

    def _load(self) -> None:
        self._latest = use_certificates(self._options)

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, tls: ssl.SSLContext) -> int | None:
        """SNI callback: switches a new connection to the context loaded last, whatever server name it asks for.

        A context cannot drop a CA once loaded, so each change creates a new context. Nor can it drop sessions that TLS
        1.2 clients resume without a ticket: their CA may have been removed, so they have to do a full handshake.
        """
        if connection.session_reused and self._options.ssl_ca_certs and self._latest is not tls:
            return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
        connection.context = self._latest
        return None
