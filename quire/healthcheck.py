"""Health checks for containers: `python -m quire.healthcheck grpc HOST:PORT [SERVICE]`, `… http URL`,
`… unix PATH URL`, which asks over a Unix socket.

Exits with 0 when healthy, else with 1 and a line that says why. TLS between the services is configured by the same
environment variables as for the services themselves.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.rpc.status import from_rpc_error
from quire.unix_socket import UnixConnection

_SECONDS = 4.0  # below the time-out of the checks in compose.yaml


def main(arguments: Sequence[str]) -> str:
    """Runs the check; returns what is wrong, or an empty string."""
    match list(arguments):
        case ["grpc", address]:
            return asyncio.run(check_grpc(address, ""))
        case ["grpc", address, service]:
            return asyncio.run(check_grpc(address, service))
        case ["http", url]:
            return check_http(url)
        case ["unix", path, url]:
            return check_unix(path, url)
    return "usage: python -m quire.healthcheck grpc HOST:PORT [SERVICE] | http URL | unix PATH URL"


async def check_grpc(address: str, service: str) -> str:
    """Asks a gRPC health service; health checks need no token. Returns what is wrong, or an empty string."""
    security = RpcSecurityOptions(
        grpc_tls_certfile=os.environ.get("QUIRE_GRPC_TLS_CERTFILE") or None,
        grpc_tls_keyfile=os.environ.get("QUIRE_GRPC_TLS_KEYFILE") or None,
        grpc_tls_ca_certs=os.environ.get("QUIRE_GRPC_TLS_CA_CERTS") or None,
    )
    async with open_channel(address, security) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"{address}: {from_rpc_error(error).message}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return "" if status == "SERVING" else f"{address}: {status}"


def check_http(url: str) -> str:
    """Fetches a page; any status but 200 is a failure. Returns what is wrong, or an empty string."""
    if not url.startswith(("http://", "https://")):
        return f"{url} is not an http address"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:  # noqa: S310  (checked above)
            return "" if response.status == 200 else f"{url}: status {response.status}"
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"


def check_unix(path: str, url: str) -> str:
    """Like `check_http` over a Unix socket, such as `/run/quire.sock /health`."""
    connection = UnixConnection(path, _SECONDS)
    try:
        connection.request("GET", url)
        status = connection.getresponse().status
        return "" if status == 200 else f"{path} {url}: status {status}"
    except (OSError, http.client.HTTPException) as error:
        return f"{path}: {error}"
    finally:
        connection.close()


if __name__ == "__main__":
    if trouble := main(sys.argv[1:]):
        sys.exit(trouble)
