"""`quire workers`: shows what a router knows of its workers, and why it placed a request where it did."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from types import MappingProxyType

import click
import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from quire.client.fleet_table import fleet_table
from quire.client.placement_table import placement_table
from quire.options.server import RpcSecurityOptions
from quire.options.workers import WorkersOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.v1 import router_pb2, router_pb2_grpc

_ADVICE: Mapping[grpc.StatusCode, str] = MappingProxyType(
    {
        grpc.StatusCode.UNAVAILABLE: "No router answers at {address}. `quire serve` prints its router's address when "
        "it is ready; pass it with --router-address. If the services use TLS, pass the three --grpc-tls options.",
        grpc.StatusCode.DEADLINE_EXCEEDED: "The router at {address} did not answer within {seconds:g} s.",
        grpc.StatusCode.UNIMPLEMENTED: "The service at {address} is not a router. Name one with --router-address.",
        grpc.StatusCode.UNAUTHENTICATED: "The router at {address} requires the services' token: set --grpc-token or "
        "QUIRE_GRPC_TOKEN. `quire serve` with --api-key generates one unless it is given one.",
    }
)
# Prefixes that the gateway puts before the request id in an answer's id.
_ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")


def main(workers: WorkersOptions, security: RpcSecurityOptions) -> None:
    """Prints the table once, or repeatedly until Ctrl-C.

    Raises:
        click.ClickException: the router does not answer, or knows no such request.
        StartupError: the TLS options are incomplete, or the token is invalid.
    """
    security.check()
    weights = _weights(workers)
    if weights.ListFields() and not workers.explain:
        raise click.UsageError("--host-tier, --interference and --temperature need --explain REQUEST_ID.")
    try:
        asyncio.run(_show(workers, weights, security))
    except KeyboardInterrupt:
        if workers.watch is None:
            raise


async def _show(options: WorkersOptions, weights: router_pb2.PlacementWeights, security: RpcSecurityOptions) -> None:
    async with open_channel(options.router_address, security) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        while True:
            text = await _ask(stub, options, weights, security)
            if options.watch is not None and sys.stdout.isatty():
                click.clear()
            click.echo(text)
            if options.watch is None:
                return
            await asyncio.sleep(options.watch)


async def _ask(
    stub: router_pb2_grpc.RouterServiceStub,
    options: WorkersOptions,
    weights: router_pb2.PlacementWeights,
    security: RpcSecurityOptions,
) -> str:
    metadata = call_metadata(security)
    try:
        if options.explain:
            request = router_pb2.ExplainPlacementRequest(request_id=_request_id(options.explain), weights=weights)
            answer = await stub.ExplainPlacement(request, metadata=metadata, timeout=CALL_SECONDS)
            return _json(answer) if options.json else placement_table(answer, _named(weights))
        answer = await stub.ListWorkers(router_pb2.ListWorkersRequest(), metadata=metadata, timeout=CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        advice = _ADVICE.get(error.code(), "{details}")
        raise click.ClickException(
            advice.format(address=options.router_address, seconds=CALL_SECONDS, details=error.details())
        ) from error
    return _json(answer) if options.json else fleet_table(answer.workers)


def _weights(options: WorkersOptions) -> router_pb2.PlacementWeights:
    return router_pb2.PlacementWeights(
        host_tier=options.host_tier, interference=options.interference, temperature=options.temperature
    )


def _named(weights: router_pb2.PlacementWeights) -> list[str]:
    """The weights as command-line options."""
    return [f"--{field.name.replace('_', '-')} {value:g}" for field, value in weights.ListFields()]


def _request_id(text: str) -> str:
    for prefix in _ANSWER_PREFIXES:
        text = text.removeprefix(prefix)
    return text


def _json(answer: Message) -> str:
    return json_format.MessageToJson(
        answer, always_print_fields_with_no_presence=True, preserving_proto_field_name=True, indent=None
    )
