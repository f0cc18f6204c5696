"""Real engines behind a real router: one computes prompts, the other one loads their blocks and generates."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def engines(model: Path, shared: Path) -> Iterator[list[str]]:
    """The addresses of a producer and a consumer."""
    ports, processes = [free_port(), free_port()], []
    for port, role in zip(ports, ("kv_producer", "kv_consumer"), strict=True):
        config = {
            "kv_connector": "SharedStorageConnector", "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": str(shared)},
        }  # fmt: skip
        command = quire(
            "engine", str(model), "--port", str(port), "--dtype", "float32", "--cpu-threads", "1", "--log-level",
            "error", "--kv-cache-memory-bytes", "32M", "--mamba-block-size", "32",
            "--kv-transfer-config", json.dumps(config),
        )  # fmt: skip
        processes.append(subprocess.Popen(command, cwd=ROOT))
    yield [f"127.0.0.1:{port}" for port in ports]
    for process in processes:
        process.kill()
        process.wait()


async def counters(address: str) -> common_pb2.EngineCounters:
    """What a worker has counted since its start."""
    async with open_channel(address, RpcSecurityOptions()) as channel:
        answer = await engine_pb2_grpc.EngineServiceStub(channel).GetLoad(engine_pb2.GetLoadRequest())
    found: common_pb2.EngineCounters = answer.load.counters
    return found


async def test_requests_continue_where_their_blocks_are_loaded(tmp_path: Path) -> None:
    """Of a model with full attention, windows and states; tokens are those of one engine that has no other."""
    folder = make_model(tmp_path / "model", "lfm3")
    prompts = random_prompts(180, 150, 20, 130, seed=4)
    with running_engine(folder) as engine:
        expected = tokens(run(engine, prompts, replace(GREEDY, max_tokens=NUM_TOKENS)))
    with engines(folder, tmp_path) as addresses:
        options = RouterOptions(workers=tuple(addresses), prefill_worker_min_tokens=64)
        router = Router(options, GrpcServerOptions(), RpcSecurityOptions())
        await router.start()
        async with connect(router.server.port) as client, client.session() as session:
            for address in addresses:
                await client.wait_state(address, router_pb2.WORKER_STATE_READY, START_SECONDS)
            for number, prompt in enumerate(prompts):
                request = generation(prompt, NUM_TOKENS)
                request.sampling.temperature, request.sampling.ignore_eos = 0.0, True
                await session.start(number, request)
            outputs = [await session.outputs[number].wait_ended() for number in range(len(prompts))]
        assert [output.tokens[0] for output in outputs] == expected
        assert router.dispatcher._metrics.hand_overs._value.get() == 3
        producer, consumer = [await counters(address) for address in addresses]
        await router.close()
    assert producer.generation_tokens < 3 * NUM_TOKENS / 2
    assert consumer.external_cache_hits > 300
    assert consumer.computed_tokens < 20 + 3 * 64 + 4 * NUM_TOKENS
