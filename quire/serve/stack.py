"""The local stack: which processes, with which options and addresses, from start to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import logging
import os
import secrets
import signal
import ssl
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from quire.errors import StartupError
from quire.log import setup_logging
from quire.options.base import to_arguments
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.serve.ports import check_port_free, free_ports
from quire.serve.summary import format_summary
from quire.serve.supervisor import ProcessSpec, Supervisor
from quire.v1 import router_pb2, router_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class StackOptions:
    """Everything the user chose."""

    serve: ServeOptions
    model: ModelOptions
    gateway: GatewayOptions
    tokenizer: TokenizerOptions
    router: RouterOptions
    engine: EngineOptions
    security: RpcSecurityOptions
    log: LogOptions


@dataclass(frozen=True)
class Addresses:
    """Where the processes of one stack listen, on the loopback address."""

    router: str
    tokenizer: str
    engines: tuple[str, ...]
    metrics: dict[str, int]  # process name → port


class _Stopped(Exception):
    """The user asked to stop."""


def main(**groups: Any) -> None:
    """Starts the stack and supervises it until Ctrl-C.

    Raises:
        StartupError: it cannot start, or a service dies again and again.
    """
    options = _with_derived(StackOptions(**groups))
    setup_logging("serve", options.log)
    check_port_free(options.gateway.host, options.gateway.port, "--port")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_stopped)
    start = time.monotonic()
    addresses = _choose_addresses(options)
    supervisor: Supervisor | None = None
    try:
        supervisor = Supervisor(process_specs(options, addresses))
        _wait_ready(supervisor, options)
        click.echo(asyncio.run(_summary(options, addresses, time.monotonic() - start)))
        while True:
            supervisor.restart_dead()
            time.sleep(_POLL_SECONDS)
    except _Stopped:
        click.echo("Stopping…", err=True)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if supervisor:
            supervisor.stop("gateway", options.serve.stop_timeout_seconds)


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _with_derived(options: StackOptions) -> StackOptions:
    """The options with what follows from them filled in."""
    changes: dict[str, Any] = {}
    if options.gateway.api_key and not options.security.grpc_token:
        # The API asks for a key, so the gRPC ports behind it must not be open to every user of this machine.
        changes["security"] = dataclasses.replace(options.security, grpc_token=secrets.token_urlsafe(32))
    if options.serve.engines > 1 and options.engine.cpu_threads is None:
        ranks = options.serve.engines * options.engine.tensor_parallel_size
        threads = max(1, (os.cpu_count() or 1) // ranks)
        changes["engine"] = dataclasses.replace(options.engine, cpu_threads=threads)
    return dataclasses.replace(options, **changes)


def _choose_addresses(options: StackOptions) -> Addresses:
    engines = [f"engine-{index}" for index in range(options.serve.engines)]
    names = ["router", "tokenizer", *engines]
    ports = free_ports(2 * len(names))
    grpc_ports = dict(zip(names, ports, strict=False))
    if options.serve.router_port:
        check_port_free("127.0.0.1", options.serve.router_port, "--router-port")
        grpc_ports["router"] = options.serve.router_port
    address = {name: f"127.0.0.1:{port}" for name, port in grpc_ports.items()}
    return Addresses(
        address["router"], address["tokenizer"], tuple(address[name] for name in engines),
        dict(zip(names, ports[len(names) :], strict=True)),
    )  # fmt: skip


def process_specs(options: StackOptions, addresses: Addresses) -> list[ProcessSpec]:
    """The processes of the stack; their options are the user's, with the addresses filled in."""
    router = dataclasses.replace(options.router, workers=(*options.router.workers, *addresses.engines))
    gateway = dataclasses.replace(
        options.gateway, router_address=(addresses.router,), tokenizer_address=addresses.tokenizer
    )
    shared = (options.security, options.log)

    def server(name: str, address: str) -> GrpcServerOptions:
        port = int(address.rpartition(":")[2])
        return GrpcServerOptions(
            port=port, metrics_port=addresses.metrics[name], drain_timeout_seconds=options.serve.stop_timeout_seconds
        )

    engines = [
        _spec(f"engine-{index}", "engine", options.model, options.engine, server(f"engine-{index}", address), *shared)
        for index, address in enumerate(addresses.engines)
    ]
    return [
        *engines,  # the slowest to start goes first
        _spec("router", "router", router, server("router", addresses.router), *shared),
        _spec(
            "tokenizer",
            "tokenizer",
            options.model,
            options.tokenizer,
            server("tokenizer", addresses.tokenizer),
            *shared,
        ),
        _spec("gateway", "gateway", gateway, *shared),
    ]


def _spec(name: str, command: str, *groups: Any) -> ProcessSpec:
    arguments = [command]
    environment: dict[str, str] = {}
    for group in groups:
        more_arguments, more_environment = to_arguments(group)
        arguments += more_arguments
        environment |= more_environment
    return ProcessSpec(name, arguments, environment)


def _wait_ready(supervisor: Supervisor, options: StackOptions) -> None:
    """Waits until the gateway answers /health with 200.

    Raises:
        StartupError: a process ended, or the time ran out.
    """
    deadline = time.monotonic() + options.serve.startup_timeout_seconds
    while time.monotonic() < deadline:
        supervisor.check_started()
        if _is_healthy(options.gateway):
            return
        time.sleep(_POLL_SECONDS)
    raise StartupError(
        f"The stack was not ready after {options.serve.startup_timeout_seconds:g} s; "
        "give it longer with --startup-timeout-seconds."
    )


def _is_healthy(gateway: GatewayOptions) -> bool:
    host = "127.0.0.1" if gateway.host in ("0.0.0.0", "") else gateway.host  # noqa: S104  (compared, not bound)
    connection: http.client.HTTPConnection
    if gateway.ssl_certfile:
        # Asks whether our own child is up, over loopback: there is nobody to be deceived by.
        unverified = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, gateway.port, timeout=2, context=unverified)
    else:
        connection = http.client.HTTPConnection(host, gateway.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


async def _summary(options: StackOptions, addresses: Addresses, seconds: float) -> str:
    metadata = call_metadata(options.security)
    async with open_channel(addresses.router, options.security) as channel:
        router = router_pb2_grpc.RouterServiceStub(channel)
        answer = await router.ListWorkers(router_pb2.ListWorkersRequest(), metadata=metadata, timeout=CALL_SECONDS)
    async with open_channel(addresses.tokenizer, options.security) as channel:
        tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        info = await tokenizer.GetTokenizerInfo(
            tokenizer_pb2.GetTokenizerInfoRequest(), metadata=metadata, timeout=CALL_SECONDS
        )
    ready = [worker for worker in answer.workers if worker.state == router_pb2.WORKER_STATE_READY]
    scheme = "https" if options.gateway.ssl_certfile else "http"
    return format_summary(
        ready[0].model_info,
        workers=len(answer.workers),
        seconds=seconds,
        url=f"{scheme}://{options.gateway.host}:{options.gateway.port}",
        router=addresses.router,
        metrics={name: f"http://127.0.0.1:{port}/metrics" for name, port in addresses.metrics.items()},
        has_chat_template=info.has_chat_template,
        api_key=bool(options.gateway.api_key),
    )
