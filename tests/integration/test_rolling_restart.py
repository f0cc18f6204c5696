"""Routers and engines are replaced one after the other under load, and no client notices."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.v1 import router_pb2
from tests.support.engine_process import free_port
from tests.support.gateway_stack import Gateway, gateway_before, running_tokenizer
from tests.support.router_client import connect
from tests.support.stack import ROOT, quire
from tests.support.stream_reader import Reader
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.slow

START_SECONDS = 180.0
BODIES: Sequence[dict[str, Any]] = [
    # Seeded streams choose among a few likely tokens: among thousands, the last bit of a logit would decide.
    {"prompt": f"A stream, number {number}", "max_tokens": 60, "ignore_eos": True}
    | {"temperature": number % 2, "seed": number, "top_k": 20}
    for number in range(4)
]
# Of the routers and of the engines, one finishes what it has when it is stopped; what the other one has moves.
DRAINS = ((), ("--drain-timeout-seconds", "0"))


class Fleet:
    """Routers at fixed addresses, and engines that register with all of them."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self.routers = [free_port(), free_port()]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}  # by port

    def start_router(self, port: int, *arguments: str) -> None:
        command = quire("router", "--port", str(port), "--worker-lease-seconds", "3", *arguments)
        self.processes[port] = subprocess.Popen(command, cwd=ROOT)

    def start_engine(self, *arguments: str) -> int:
        """Returns its port."""
        port = free_port()
        registration = [word for each in self.routers for word in ("--register-with", f"127.0.0.1:{each}")]
        self.processes[port] = subprocess.Popen(
            quire(
                "engine", str(self._model), "--port", str(port), "--dtype", "float32", "--cpu-threads", "1",
                "--kv-cache-memory-bytes", "32M", "--max-model-len", "512", "--log-level", "error", *registration,
                *arguments,
            ),
            cwd=ROOT,
        )  # fmt: skip
        return port

    async def wait_ready(self, *engines: int) -> None:
        """Waits until the engines at these ports serve, and all routers know it."""
        for router in self.routers:
            async with connect(router) as client:
                for engine in engines:
                    while True:
                        with contextlib.suppress(grpc.aio.AioRpcError):  # the router is starting
                            await client.wait_state(f"127.0.0.1:{engine}", router_pb2.WORKER_STATE_READY, START_SECONDS)
                            break
                        await asyncio.sleep(0.05)

    async def stop(self, port: int) -> None:
        """SIGTERM; returns once the process has ended by itself."""
        process = self.processes.pop(port)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def streaming(gateway: Gateway, expected: Sequence[Any]) -> AsyncIterator[list[int]]:
    """Requests all streams again and again; yields how often each was answered as expected, once each was."""
    answered, is_over = [0] * len(BODIES), asyncio.Event()

    async def repeat(number: int) -> None:
        while not is_over.is_set():
            assert await Reader(gateway, "/v1/completions", BODIES[number]).result() == expected[number]
            answered[number] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(len(BODIES)):
            group.create_task(repeat(number))
        await eventually(lambda: all(answered))
        yield answered
        is_over.set()


async def test_no_client_notices(tiny_llama: Path) -> None:
    fleet = Fleet(tiny_llama)
    with contextlib.closing(fleet):
        for port, drain in zip(fleet.routers, DRAINS, strict=True):
            fleet.start_router(port, *drain)
        engines = [fleet.start_engine(*drain) for drain in DRAINS]
        await fleet.wait_ready(*engines)
        addresses = [f"127.0.0.1:{port}" for port in fleet.routers]
        async with (
            running_tokenizer(tiny_llama) as tokenizer,
            gateway_before(addresses, [f"127.0.0.1:{tokenizer.port}"]) as gateway,
        ):
            undisturbed = [await Reader(gateway, "/v1/completions", body).result() for body in BODIES]
            async with streaming(gateway, undisturbed):
                for port in fleet.routers:
                    await fleet.stop(port)
                    fleet.start_router(port)
                    await fleet.wait_ready(*engines)
            for port in engines:
                # An engine takes long to start, with streams even longer: test_elastic has them meanwhile.
                await fleet.wait_ready(fleet.start_engine())
                async with streaming(gateway, undisturbed) as answered:
                    await fleet.stop(port)
                    before = list(answered)
                    await eventually(lambda now=answered, before=before: all(map(int.__gt__, now, before)))
