"""Loads TLS files, with errors that name the file at fault."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from quire.errors import StartupError

_PEM = re.compile(b"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# Tags of ASN.1 in DER: the element for a version, which is optional, and a time with two digits for the year.
_VERSION, _SHORT_TIME = 0xA0, 0x17


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
    return min((_not_after(ssl.PEM_cert_to_DER_cert(each.decode())) for each in _PEM.findall(pem)), default=None)


def _not_after(certificate: bytes) -> float:
    """The end of the validity of a certificate in DER; the parts before it are the serial number, the algorithm of the
    signature and the issuer."""
    ((_, signed),) = _elements(certificate)
    first, *parts = _elements(next(_elements(signed))[1])
    validity = parts[3 if first[0] == _VERSION else 2][1]
    _, (tag, text) = _elements(validity)
    form = "%y%m%d%H%M%SZ" if tag == _SHORT_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode(), form).replace(tzinfo=UTC).timestamp()


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the content of each element in DER."""
    place = 0
    while place < len(content):
        tag, length, place = content[place], content[place + 1], place + 2
        if length & 0x80:  # then it is the number of bytes that the length takes
            size = length & 0x7F
            length, place = int.from_bytes(content[place : place + size], "big"), place + size
        yield tag, content[place : place + length]
        place += length


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
