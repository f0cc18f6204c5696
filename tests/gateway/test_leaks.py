"""What hundreds of requests leave behind in gateway, router and tokenizer service: nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.stream_reader import Reader
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.slow

BODY = {"prompt": [65], "max_tokens": 20}
MANY = 80
AT_ONCE = 20
# How much more there may be: a pool of threads grows when it is busy. Of each request, records stay: the router's of
# its placement, and the fake engine's.
ALLOWED = {"tasks": 0, "threads": 4, "files": 4, "objects": 5 * MANY}


async def ask(stack: GatewayStack, number: int) -> None:
    """A whole answer, a stream, a stream that is left in the middle, or a refusal."""
    match number % 4:
        case 0:
            await stack.complete(**BODY)
        case 1:
            await Reader(stack, "/v1/completions", BODY).result()
        case 2:
            reader = Reader(stack, "/v1/completions", BODY | {"max_tokens": 4000})
            await eventually(lambda: reader.begun)
            reader.task.cancel()
            await asyncio.wait([reader.task])
        case 3:
            assert (await stack.post("/v1/completions", BODY | {"temperature": -1})).status_code == 400


async def left_after(stack: GatewayStack, count: int) -> dict[str, int]:
    """What there is in this process once so many requests have ended, and their connections are closed."""
    async with httpx.AsyncClient(base_url=stack.client.base_url, timeout=WAIT_SECONDS) as client:
        for start in range(0, count, AT_ONCE):
            requests = (ask(replace(stack, client=client), number) for number in range(start, start + AT_ONCE))
            await asyncio.gather(*requests)
    await eventually(
        lambda: not (stack.context.statistics.num_live or stack.engine.live or stack.tokenizer.num_streams)
    )
    return counted()


def counted() -> dict[str, int]:
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "objects": len(gc.get_objects()),
    }


async def test_requests_leave_nothing_behind(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as stack:
        before = await left_after(stack, MANY)
        await left_after(stack, MANY)

        def grown() -> list[str]:
            after = counted()
            return [f"{name}: {after[name]}" for name in ALLOWED if after[name] > before[name] + ALLOWED[name]]

        await eventually(lambda: not grown(), f"{grown()} after {before}")
