"""Options of every gRPC service: where it listens, how it drains, which peers it trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.certificates import load_certificates
from quire.errors import StartupError
from quire.options.base import option
from quire.options.settling import drain_settle_option

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class RpcSecurityOptions:
    """Security between services: token and mutual TLS."""

    grpc_token: str | None = option(
        None, "Token that every gRPC call between the services must carry, except health checks.", secret=True
    )
    grpc_tls_certfile: str | None = option(
        None, "Certificate (PEM) of this service, presented to clients and servers. It and the two other files may be "
        "replaced at any time; new connections use the new ones.",
    )  # fmt: skip
    grpc_tls_keyfile: str | None = option(None, "Private key (PEM) of that certificate.")
    grpc_tls_ca_certs: str | None = option(
        None, "Certificate authorities (PEM) that must have signed the peers' certificates."
    )

    @property
    def tls_files(self) -> Sequence[str]:
        """Paths of the certificate, its key and the authorities; empty if TLS is off.

        Raises:
            StartupError: only some of the three files are given.
        """
        files = (self.grpc_tls_certfile, self.grpc_tls_keyfile, self.grpc_tls_ca_certs)
        given = [path for path in files if path]
        if given and len(given) < len(files):
            raise StartupError(
                "TLS between services needs all of --grpc-tls-certfile, --grpc-tls-keyfile and --grpc-tls-ca-certs."
            )
        return given

    @property
    def tls(self) -> bool:
        """Whether TLS is on.

        Raises: see `tls_files`.
        """
        return bool(self.tls_files)

    def check(self) -> None:
        """Checks the token and the TLS files.

        Raises:
            StartupError: the token has characters that gRPC metadata cannot carry, or a file cannot be used.
        """
        if self.tls:
            load_certificates("--grpc-tls", *self.tls_files)
        token = self.grpc_token or ""
        if unfit := next((char for char in token if not " " <= char <= "~"), ""):
            raise StartupError(
                f"--grpc-token (QUIRE_GRPC_TOKEN) contains {unfit!r}, which gRPC cannot transmit. Use only printable "
                "ASCII characters. A secret made from a file often ends with the file's newline."
            )


@dataclass(frozen=True)
class GrpcServerOptions:
    """gRPC service: listening address and shutdown."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(0, "Port to listen on; 0 chooses a free one.", minimum=0, maximum=65535)
    insecure: bool = option(
        False,
        "Allows listening on addresses that other machines can reach without TLS, for private networks such as "
        "compose's.",
    )
    metrics_host: str = option("127.0.0.1", "Address of the Prometheus endpoint.")
    metrics_port: int = option(0, "Port of the Prometheus endpoint; 0 turns it off.", minimum=0, maximum=65535)
    drain_settle_seconds: float = drain_settle_option()
    drain_timeout_seconds: float = option(90.0, "After that, maximum time for running requests to finish.", minimum=0.0)

    def check(self, security: RpcSecurityOptions) -> None:
        """Checks that no unprotected control plane is exposed.

        Raises:
            StartupError: the address is reachable from other machines and TLS is off; or the token is invalid.
        """
        security.check()
        if self.host not in LOOPBACK and not security.tls and not self.insecure:
            raise StartupError(
                f"--host {self.host} is reachable from other machines and TLS is off. Set --grpc-tls-certfile, "
                "--grpc-tls-keyfile and --grpc-tls-ca-certs, or pass --insecure on a private network."
            )
