"""Loads a server's TLS files, with errors that name the file at fault."""

from __future__ import annotations

import ssl
from pathlib import Path

from quire.errors import StartupError


def server_context(certfile: str, keyfile: str, ca_certs: str | None) -> ssl.SSLContext:
    """Builds the TLS context for a server's connections.

    Raises:
        StartupError: a file cannot be read, or does not contain what it should.
    """
    for flag, path in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs)):
        if path:
            _check_readable(flag, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, password="")  # without a password it would prompt on the terminal
    except ssl.SSLError as error:
        raise StartupError(
            f"--ssl-certfile {certfile} and --ssl-keyfile {keyfile} must be a certificate and its key in PEM format, "
            f"the key without a passphrase: {error}."
        ) from error
    if ca_certs:
        try:
            context.load_verify_locations(ca_certs)
        except ssl.SSLError as error:
            raise StartupError(f"--ssl-ca-certs {ca_certs} must be certificates in PEM format: {error}.") from error
    return context


def _check_readable(flag: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise StartupError(f"{flag} {path} cannot be read: {error.strerror}.") from error
