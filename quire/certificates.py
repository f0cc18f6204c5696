"""Loads TLS files, with errors that name the file at fault."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.errors import StartupError

_BEGIN = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True)
class Certificates:
    """What the files hold.

    Attributes:
        context: the TLS context for a server's connections.
        certificate, key, authorities: the files' contents (PEM). There may be no authorities.
    """

    context: ssl.SSLContext
    certificate: bytes
    key: bytes
    authorities: bytes


def load_certificates(
    flags: str, certfile: str, keyfile: str, ca_certs: str | None, ciphers: str | None = None
) -> Certificates:
    """Loads the files, and checks that they fit together.

    Args:
        flags: what the names of the files' options begin with, such as "--ssl".
        ciphers: those that the context allows, in OpenSSL's notation; None means OpenSSL's default.

    Raises:
        StartupError: a file cannot be read, or does not contain what it should; or no such cipher is known.
    """
    certificate, key = _read(f"{flags}-certfile", certfile), _read(f"{flags}-keyfile", keyfile)
    authorities = _read(f"{flags}-ca-certs", ca_certs) if ca_certs else b""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, password="")  # without a password it would prompt on the terminal
    except OSError as error:  # an SSLError is one
        raise StartupError(
            f"{flags}-certfile {certfile} and {flags}-keyfile {keyfile} must be a certificate and its key in PEM "
            f"format, the key without a passphrase: {error}."
        ) from error
    if ca_certs:
        try:
            context.load_verify_locations(ca_certs)
        except OSError as error:
            raise StartupError(f"{flags}-ca-certs {ca_certs} must be certificates in PEM format: {error}.") from error
    if ciphers:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise StartupError(f"{flags}-ciphers {ciphers!r} names no cipher that OpenSSL knows.") from error
    return Certificates(context, certificate, key, authorities)


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StartupError(f"{flag} {path} cannot be read: {error.strerror}.") from error


def expiry(pem: bytes) -> float | None:
    """Unix time at which the first of the certificates in a file expires; None if it has none in the usual form."""
    from cryptography.x509 import load_pem_x509_certificates  # slow to import

    certificates = load_pem_x509_certificates(pem) if _BEGIN in pem else []
    return min((each.not_valid_after_utc.timestamp() for each in certificates), default=None)


_in_use: dict[str, Certificates] = {}


def use(what: str, certificates: Certificates) -> Certificates:
    """Notes that this process uses certificates from now on, for `certificate_expiries`; returns them.

    Args:
        what: their name, as that of watched files.
    """
    _in_use[what] = certificates
    return certificates


def certificate_expiries() -> Mapping[str, float]:
    """The certificates that this process uses → when the first of them expires, as Unix time."""
    found = {what: expiry(certificates.certificate) for what, certificates in list(_in_use.items())}
    return {what: end for what, end in found.items() if end is not None}
