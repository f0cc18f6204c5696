"""Cost of a fleet's reports for a router that places nothing: `python -m benchmarks.router_reports`.

One process simulates all workers: a single server, which the router reaches under one loopback address per worker, each
with its own connection, session, health watch and cache events. Measures the CPU time of the router process's threads
once all workers are ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import uvloop
from prometheus_client import CollectorRegistry

from benchmarks.machine import heading
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.server import GrpcServer
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from router.app import Router
from router.main import calm_collector

_STEPS_PER_BEAT = 5  # steps of a busy worker per heartbeat
_BLOCKS_PER_EVENT = 12  # stored, and as many removed: 200 tokens per step
_KEPT = 400  # number of events until their blocks are removed


class Fleet(engine_pb2_grpc.EngineServiceServicer):
    """All workers in one server."""

    def __init__(self, events_per_second: float) -> None:
        """
        Args:
            events_per_second: cache events of each worker; 0 means idle workers.
        """
        self._pause = 1 / events_per_second if events_per_second else 0.0

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.EngineServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.EngineServiceSessionResponse]:
        await asyncio.sleep(random.random() * HEARTBEAT_SECONDS)
        frame = engine_pb2.EngineServiceSessionResponse()
        load = frame.load
        load.total_kv_blocks = 10_000
        times = load.counters.model_execute_milliseconds
        times.bounds.extend(2.0**power for power in range(12))
        times.counts.extend([0] * 13)
        while True:
            if self._pause:
                load.busy, load.running_sequences, load.used_kv_blocks = True, 16, 5000
                load.step += _STEPS_PER_BEAT
                load.counters.computed_tokens += 200 * _STEPS_PER_BEAT
                times.counts[6] += _STEPS_PER_BEAT
                times.sum += 50.0 * _STEPS_PER_BEAT
            yield frame
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def GetModelInfo(
        self, request: engine_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.GetModelInfoResponse:
        info = common_pb2.ModelInfo(
            served_model_names=["bench"], block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, fingerprint="one"
        )
        return engine_pb2.GetModelInfoResponse(model_info=info)

    async def SubscribeKvEvents(
        self, request: engine_pb2.SubscribeKvEventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
        yield engine_pb2.SubscribeKvEventsResponse(is_snapshot=True, sequence=1, epoch="e")
        if not self._pause:
            await asyncio.sleep(3600)
        await asyncio.sleep(random.random() * self._pause)
        for message in _changes():
            yield message
            await asyncio.sleep(self._pause)


def _changes() -> Iterator[engine_pb2.SubscribeKvEventsResponse]:
    """Cache events: each message stores new blocks and removes the oldest ones."""
    kept: list[list[int]] = []
    count = together = 0
    for sequence in itertools.count(2):
        message = engine_pb2.SubscribeKvEventsResponse(sequence=sequence, epoch="e")
        if len(kept) >= _KEPT:
            removed = kept.pop(0)
            message.events.add(
                removed=engine_pb2.KvBlocksRemoved(block_keys=removed, tier=engine_pb2.CACHE_TIER_DEVICE)
            )
            count -= len(removed)
            for key in removed:
                together ^= key
        stored = [random.getrandbits(64) for _ in range(_BLOCKS_PER_EVENT)]
        kept.append(stored)
        message.events.add(
            stored=engine_pb2.KvBlocksStored(block_keys=stored, block_size=16, tier=engine_pb2.CACHE_TIER_DEVICE)
        )
        count += len(stored)
        for key in stored:
            together ^= key
        message.device.num_blocks, message.device.keys_xor = count, together
        yield message


async def serve_fleet(events_per_second: float) -> None:
    """Runs the fleet's server: prints its port, and serves until it is killed."""
    server = GrpcServer(
        "engine", "quire.v1.EngineService", GrpcServerOptions(host="0.0.0.0", insecure=True), RpcSecurityOptions(),
        CollectorRegistry(),
    )  # fmt: skip
    engine_pb2_grpc.add_EngineServiceServicer_to_server(Fleet(events_per_second), server.server)
    await server.start()
    await server.set_serving(True)
    print(server.port, flush=True)
    await asyncio.sleep(3600)


@contextlib.asynccontextmanager
async def fleet_process(events_per_second: float) -> AsyncIterator[int]:
    """Runs the fleet in another process and yields its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.router_reports", "--serve", str(events_per_second),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def spent() -> float:
    """CPU seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(workers: int, events_per_second: float, seconds: float) -> str:
    """Measures one case and returns its row of the table."""
    async with fleet_process(events_per_second) as port:
        addresses = [f"127.0.{number // 250}.{number % 250 + 1}:{port}" for number in range(workers)]
        router = Router(RouterOptions(workers=tuple(addresses)), GrpcServerOptions(), RpcSecurityOptions())
        began = time.monotonic()
        await router.start()
        while sum(worker.ready for worker in router.registry.workers) < 0.99 * workers:
            await asyncio.sleep(0.2)
        joined = time.monotonic() - began
        await asyncio.sleep(2)
        start, before, own = time.monotonic(), spent(), time.thread_time()
        await asyncio.sleep(seconds)
        taken, used, own = time.monotonic() - start, spent() - before, time.thread_time() - own
        ready = sum(worker.ready for worker in router.registry.workers)
        await router.close()
    return (
        f"| {workers:,} | {'busy' if events_per_second else 'idle'} | {events_per_second:g} | {joined:.1f} | {ready:,} "
        f"| {used / taken:.0%} | {own / taken:.0%} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--events", type=float, nargs="+", default=[0, 1, 4], help="of each worker, in a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        uvloop.run(serve_fleet(chosen.serve))
        return
    logging.disable(logging.CRITICAL)
    calm_collector()
    print(heading())
    print(
        "| workers | they are | cache events/s of each | s until ready | ready at the end | CPU of the router "
        "| of its event loop |\n" + "|---" * 7 + "|"
    )
    for workers in chosen.workers:
        for events in chosen.events:
            print(uvloop.run(measure(workers, events, chosen.seconds)), flush=True)


if __name__ == "__main__":
    main()
