"""Real engines behind a real router: one computes prompts, the other one loads their blocks and generates."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc, router_pb2
from router.app import Router
from tests.support.engine_process import free_port
from tests.support.router_client import connect, generation
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.stack import ROOT, quire
from tests.support.tiny_models import make_model

pytestmark = pytest.mark.slow

START_SECONDS = 180.0
NUM_TOKENS = 40


def transfer(connector: str, role: str, folder: Path) -> dict[str, Any]:
    """Settings of a worker that sees a folder of all, or has one of its own."""
    shared, own = {"shared_storage_path": str(folder)}, {"local_storage_path": str(folder / role)}
    extra = shared if connector == "SharedStorageConnector" else own
    return {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra}


@contextlib.contextmanager
def engines(model: Path, connector: str, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A producer and a consumer, by their addresses."""
    processes = {}
    for role in ("kv_producer", "kv_consumer"):
        port = free_port()
        command = quire(
            "engine", str(model), "--port", str(port), "--dtype", "float32", "--cpu-threads", "1", "--log-level",
            "error", "--kv-cache-memory-bytes", "32M", "--mamba-block-size", "32",
            "--kv-transfer-config", json.dumps(transfer(connector, role, folder)),
        )  # fmt: skip
        processes[f"127.0.0.1:{port}"] = subprocess.Popen(command, cwd=ROOT)
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


async def counters(address: str) -> common_pb2.EngineCounters:
    """What a worker has counted since its start."""
    async with open_channel(address, RpcSecurityOptions()) as channel:
        answer = await engine_pb2_grpc.EngineServiceStub(channel).GetLoad(engine_pb2.GetLoadRequest())
    found: common_pb2.EngineCounters = answer.load.counters
    return found


def greedy(prompt: list[int]) -> common_pb2.Generation:
    """A request whose tokens do not depend on a seed."""
    request = generation(prompt, NUM_TOKENS)
    request.sampling.temperature, request.sampling.ignore_eos = 0.0, True
    return request


async def tokens_at(address: str, request: common_pb2.Generation) -> list[int]:
    """The tokens that a worker answers with."""
    async with open_channel(address, RpcSecurityOptions()) as channel:
        answers = engine_pb2_grpc.EngineServiceStub(channel).Generate(
            engine_pb2.EngineServiceGenerateRequest(generation=request)
        )
        return [token async for answer in answers for token in answer.delta.token_ids]


@pytest.mark.parametrize("connector", ["SharedStorageConnector", "GrpcConnector"])
async def test_requests_continue_where_their_blocks_are_loaded(tmp_path: Path, connector: str) -> None:
    """Of a model with full attention, windows and states; tokens are those of one engine that has no other. A producer
    that dies costs no tokens either."""
    folder = make_model(tmp_path / "model", "lfm3")
    prompts = random_prompts(180, 150, 20, 130, 140, seed=4)
    with running_engine(folder) as engine:
        expected = tokens(run(engine, prompts, replace(GREEDY, max_tokens=NUM_TOKENS)))
    *prompts, last = prompts
    with engines(folder, connector, tmp_path) as processes:
        addresses = list(processes)
        options = RouterOptions(workers=tuple(addresses), prefill_worker_min_tokens=64)
        router = Router(options, GrpcServerOptions(), RpcSecurityOptions())
        await router.start()
        async with connect(router.server.port) as client, client.session() as session:
            for address in addresses:
                await client.wait_state(address, router_pb2.WORKER_STATE_READY, START_SECONDS)
            for number, prompt in enumerate(prompts):
                await session.start(number, greedy(prompt))
            outputs = [await session.outputs[number].wait_ended() for number in range(len(prompts))]
        assert [output.tokens[0] for output in outputs] == expected[:-1]
        assert router.dispatcher._metrics.hand_overs._value.get() == 3
        producer, consumer = [await counters(address) for address in addresses]
        await router.close()
        processes[addresses[0]].kill()
        continued = greedy(last)
        continued.kv_source = addresses[0]
        assert await tokens_at(addresses[1], continued) == expected[-1]
    assert producer.generation_tokens < 3 * NUM_TOKENS / 2
    assert consumer.external_cache_hits > 300
    assert consumer.computed_tokens < 20 + 3 * 64 + 4 * NUM_TOKENS
