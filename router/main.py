"""The router's entry point."""

from __future__ import annotations

import gc

import uvloop

from quire.log import setup_logging
from quire.metrics import serve_metrics
from quire.options.log import LogOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tracing import TracingOptions
from quire.rpc.discovery import check_addresses
from quire.tracing.base import Tracer, open_tracer
from router.app import Router


def main(
    router: RouterOptions, server: GrpcServerOptions, security: RpcSecurityOptions, log: LogOptions,
    tracing: TracingOptions = TracingOptions(),
) -> None:  # fmt: skip
    """Serves until SIGTERM or SIGINT.

    Raises:
        StartupError: an option is wrong or the port is taken.
    """
    setup_logging("router", log)
    check_addresses("--workers", router.workers)
    check_addresses("--worker-dns", router.worker_dns)
    calm_collector()
    with open_tracer("router", tracing) as tracer:
        uvloop.run(_serve(router, server, security, tracer))


def calm_collector() -> None:
    """Makes full garbage collections rare: they would pause every placement and stream, and find next to nothing
    here."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 1000)


async def _serve(
    options: RouterOptions, server: GrpcServerOptions, security: RpcSecurityOptions, tracer: Tracer | None
) -> None:
    router = Router(options, server, security, tracer=tracer)
    serve_metrics(router.metrics, server.metrics_host, server.metrics_port)
    router.server.heed_signals()
    await router.start()
    await router.serve_until_stopped()
