"""What `quire serve` says of a stack that is ready, and asks its services for it."""

from __future__ import annotations

import quire
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.serve.layout import Layout, StackOptions
from quire.serve.ports import api_url
from quire.serve.summary import format_summary
from quire.v1 import router_pb2, router_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc


async def node_summary(options: StackOptions, layout: Layout, seconds: float) -> str:
    """Of a node without an API."""
    ranks, routers = layout.ranks, options.engine.registration.register_with or (layout.ranks.router,)
    return (
        f"Quire {quire.__version__} is ready after {seconds:.1f} s: data-parallel ranks {ranks.ranks[0]} to "
        f"{ranks.ranks[-1]} of {ranks.size} register with the router at {', '.join(routers)}"
    )


async def summary(options: StackOptions, layout: Layout, seconds: float) -> str:
    """Asks services that are ready; on a machine that is busy starting others, they may answer late."""
    metadata = call_metadata(options.security)
    async with open_channel(layout.router[0], options.security) as channel:
        router = router_pb2_grpc.RouterServiceStub(channel)
        answer = await router.ListWorkers(
            router_pb2.ListWorkersRequest(), metadata=metadata, timeout=CALL_SECONDS, wait_for_ready=True
        )
    tokenizer = await _tokenizer_info(layout.tokenizer[0], options) if layout.tokenizer else None
    ready = [worker for worker in answer.workers if worker.state == router_pb2.WORKER_STATE_READY]
    return format_summary(
        ready[0].model_info,
        workers=len(answer.workers),
        seconds=seconds,
        url=api_url(options.gateway),
        router=layout.router[0],
        services={name: (address, layout.metrics[name]) for name, address in layout.own.items()},
        tokenizer=tokenizer,
        api_key=bool(options.gateway.api_key),
        log=options.log.log_file or "",
        parsers={
            "reasoning": options.gateway.reasoning.parser,
            "tool calls": options.gateway.tools.tool_call_parser,
        },
    )


async def _tokenizer_info(address: str, options: StackOptions) -> tokenizer_pb2.GetTokenizerInfoResponse:
    async with open_channel(address, options.security) as channel:
        tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        answer: tokenizer_pb2.GetTokenizerInfoResponse = await tokenizer.GetTokenizerInfo(
            tokenizer_pb2.GetTokenizerInfoRequest(), metadata=call_metadata(options.security), timeout=CALL_SECONDS,
            wait_for_ready=True,
        )  # fmt: skip
    return answer
