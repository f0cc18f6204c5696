"""`kv_transfer_params`, by which a proxy has one deployment compute a prompt and another one generate from it.

The answer to a request with `do_remote_decode` names the worker that keeps the prompt's KV blocks. The proxy sends what
it says with the same request to the other deployment, whose worker pulls the blocks from there.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass

from gateway.protocol.common import KvTransferParams
from quire.errors import InvalidRequest, StartupError

_PARAMETER = "kv_transfer_params"
# As long as vLLM keeps the blocks of a prefill. Afterwards the address may be another process's, and is not used.
_VALID_SECONDS = 480


@dataclass(frozen=True)
class KvTransfer:
    """A request's part in such a transfer, if it has one."""

    remote_decode: bool = False  # another deployment continues
    source: str = ""  # host:port of the worker that has computed the prompt and keeps its blocks


NO_KV_TRANSFER = KvTransfer()


class KvTransferKey:
    """Signs addresses of workers, and verifies what another deployment has signed.

    A worker sends the token of all calls to where it pulls from. So it must not be sent to addresses that a client has
    made up, and the token itself tells who has it. The key is derived from it slowly: clients see signatures, and must
    not be able to guess a short token.
    """

    def __init__(self, token: str | None) -> None:
        """
        Args:
            token: --grpc-token.

        Raises:
            StartupError: there is none.
        """
        if not token:
            raise StartupError(
                "--enable-kv-transfer-params needs --grpc-token, the same one in all deployments that exchange KV "
                "blocks: it shows that the address of a worker comes from one of them."
            )
        self._key = hashlib.scrypt(token.encode(), salt=b"quire kv_transfer_params", n=2**14, r=8, p=1)

    def params(self, address: str) -> KvTransferParams:
        """Builds the parameters that name a worker."""
        host, _, port = address.rpartition(":")
        expires = int(time.time()) + _VALID_SECONDS
        return KvTransferParams(
            do_remote_prefill=True, remote_engine_id=address, remote_host=host, remote_port=int(port), expires=expires,
            signature=self._signature(address, expires),
        )  # fmt: skip

    def transfer(self, params: KvTransferParams) -> KvTransfer:
        """Returns what a request asks for; nothing if the parameters that it passes on are too old.

        Raises:
            InvalidRequest: it asks for two things at once, or names a worker without the signature of a deployment that
                has the same token.
        """
        if params.do_remote_decode and params.do_remote_prefill:
            raise InvalidRequest(
                "kv_transfer_params sets both do_remote_decode, for another server to continue, and do_remote_prefill, "
                "to continue for another server: set one of them.",
                parameter=_PARAMETER,
            )
        if not params.do_remote_prefill:
            return KvTransfer(remote_decode=params.do_remote_decode)
        address, expires = f"{params.remote_host}:{params.remote_port}", params.expires or 0
        if not hmac.compare_digest(self._signature(address, expires).encode(), (params.signature or "").encode()):
            raise InvalidRequest(
                "kv_transfer_params is not signed by a server with the --grpc-token of this one. Pass on those of the "
                "answer to the request with do_remote_decode, unchanged.",
                parameter=_PARAMETER,
            )
        return KvTransfer(source=address) if time.time() < expires else NO_KV_TRANSFER

    def _signature(self, address: str, expires: int) -> str:
        return hmac.new(self._key, f"{address} {expires}".encode(), hashlib.sha256).hexdigest()
