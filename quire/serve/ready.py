"""Queries the services of a ready stack for the startup summary of `quire serve`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc

import quire
from quire.errors import QuireError, Unavailable
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.rpc.status import from_rpc_error
from quire.runners import ENCODE
from quire.serve.layout import Layout, StackOptions
from quire.serve.ports import api_url
from quire.serve.summary import format_summary
from quire.v1 import router_pb2, router_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc

T = TypeVar("T")
_Arguments = Mapping[str, Any]  # of a call, besides its message


async def node_summary(options: StackOptions, layout: Layout, seconds: float) -> str:
    """The startup summary of a node without an API."""
    ranks, routers = layout.ranks, options.engine.registration.register_with or (layout.ranks.router,)
    ready, nodes = f"Quire {quire.__version__} is ready after {seconds:.1f} s", options.engine.parallel.nodes
    if ranks.node_rank:
        return f"{ready}: node {ranks.node_rank} of {nodes.nnodes} has joined {nodes.master_addr}:{nodes.master_port}"
    return (
        f"{ready}: data-parallel ranks {ranks.ranks[0]} to {ranks.ranks[-1]} of {ranks.size} register with the router "
        f"at {', '.join(routers)}"
    )


async def summary(options: StackOptions, layout: Layout, seconds: float) -> str:
    """Asks the services and builds the startup summary; a short one if a service is no longer ready."""
    try:
        router, answer = await _first_answer(layout.router, options, _workers)
        tokenizer = None
        if layout.tokenizer:
            _, tokenizer = await _first_answer(layout.tokenizer, options, _tokenizer_info)
    except QuireError as error:
        return f"Quire {quire.__version__} was ready after {seconds:.1f} s at {api_url(options.gateway)}. Now: {error}"
    return format_summary(
        next(worker for worker in answer.workers if _is_ready(worker)).model_info,
        workers=sum(worker.model_info.runner != ENCODE for worker in answer.workers),
        encoders=sum(worker.model_info.runner == ENCODE for worker in answer.workers),
        seconds=seconds,
        url=api_url(options.gateway),
        router=router,
        services={name: (address, layout.metrics[name]) for name, address in layout.own.items()},
        tokenizer=tokenizer,
        api_key=options.gateway.needs_key,
        log=options.log.log_file or "",
        parsers={
            "reasoning": options.gateway.reasoning.parser,
            "tool calls": options.gateway.tools.tool_call_parser,
        },
    )


async def _first_answer(
    addresses: Sequence[str], options: StackOptions, ask: Callable[[grpc.aio.Channel, _Arguments], Awaitable[T]]
) -> tuple[str, T]:
    """Asks several replicas in turn, as some may be down; returns the first address that answers, with its answer.

    Raises:
        QuireError: none answers.
    """
    failure: QuireError = Unavailable("there is no address to ask")
    arguments = {
        "metadata": call_metadata(options.security), "timeout": CALL_SECONDS,
        "wait_for_ready": len(addresses) == 1,  # may answer late on a machine busy starting others
    }  # fmt: skip
    for address in addresses:
        async with open_channel(address, options.security) as channel:
            try:
                return address, await ask(channel, arguments)
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
            except QuireError as error:
                failure = error
    raise failure


def _is_ready(worker: router_pb2.Worker) -> bool:
    """Whether it takes requests."""
    return bool(worker.state == router_pb2.WORKER_STATE_READY and worker.model_info.runner != ENCODE)


async def _workers(channel: grpc.aio.Channel, arguments: _Arguments) -> router_pb2.ListWorkersResponse:
    """Lists the router's workers.

    Raises:
        Unavailable: no worker is ready.
    """
    router = router_pb2_grpc.RouterServiceStub(channel)
    answer: router_pb2.ListWorkersResponse = await router.ListWorkers(router_pb2.ListWorkersRequest(), **arguments)
    if not any(map(_is_ready, answer.workers)):
        raise Unavailable("no engine worker is ready")
    return answer


async def _tokenizer_info(channel: grpc.aio.Channel, arguments: _Arguments) -> tokenizer_pb2.GetTokenizerInfoResponse:
    tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    answer: tokenizer_pb2.GetTokenizerInfoResponse = await tokenizer.GetTokenizerInfo(
        tokenizer_pb2.GetTokenizerInfoRequest(), **arguments
    )
    return answer
