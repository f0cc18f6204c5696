"""A real encoder process behind a real router: no request is lost with it, and tokens are those without it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine_svc.executor.base import create_executor
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.images import from_images
from quire.v1 import common_pb2, router_pb2
from router.app import Router
from tests.support.engine_process import free_port
from tests.support.engine_server import running_engine
from tests.support.router_client import RouterClient, connect
from tests.support.stack import ROOT, quire
from tests.support.vision_models import make_vision_model, random_image
from tests.support.vision_models.conversations import ask

pytestmark = pytest.mark.slow

START_SECONDS = 180.0
CONSUMER = {"ec_connector": "GrpcConnector", "ec_role": "ec_consumer"}


@contextlib.contextmanager
def encoder(model: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An encoder with its address."""
    port = free_port()
    command = quire(
        "engine", str(model), "--port", str(port), "--dtype", "float32", "--cpu-threads", "1", "--log-level", "error",
        "--mm-encoder-only", "--device", "cpu",
    )  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def questions(model: Path, salt: str) -> list[common_pb2.Generation]:
    """Some with images of their own, which no worker has computed before with this salt."""
    sampling = common_pb2.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    requests = [ask(model, "What? ", random_image(60, 40, seed)) for seed in range(4)]
    return [
        common_pb2.Generation(
            prompt_token_ids=each.prompt_token_ids, images=from_images(image.named() for image in each.images),
            sampling=sampling, cache_salt=salt,
        )
        for each in requests
    ]  # fmt: skip


async def answers(client: RouterClient, requests: Sequence[common_pb2.Generation]) -> list[list[int]]:
    return await asyncio.gather(*map(client.generate, requests))


async def test_an_encoder_that_is_killed_costs_no_request(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path / "model", "llava")
    options = {"dtype": "float32", "num_gpu_blocks_override": 128, "use_tqdm_on_load": False, "device": "cpu"}
    model, executor = ModelOptions(model=str(folder)), create_executor(ParallelOptions())
    with encoder(folder) as (address, process):
        async with running_engine(executor, model, ec_transfer_config=CONSUMER, **options) as engine:
            router = Router(RouterOptions(workers=(engine.address, address)), GrpcServerOptions(), RpcSecurityOptions())
            await router.start()
            async with connect(router.server.port) as client:
                await client.wait_state(engine.address, router_pb2.WORKER_STATE_READY, START_SECONDS)
                reset = engine.worker.administration.reset_encoder_cache
                await client.wait_state(address, router_pb2.WORKER_STATE_READY, START_SECONDS)
                expected = await answers(client, questions(folder, "first"))
                counters = engine.worker.load_now().counters
                assert (counters.pulled_media, counters.encoded_media) == (4, 0)
                await reset()
                under_way = asyncio.create_task(answers(client, questions(folder, "while it dies")))
                await asyncio.sleep(0)
                process.kill()
                assert await under_way == expected
                await reset()
                assert await answers(client, questions(folder, "without it")) == expected
                counters = engine.worker.load_now().counters
                assert counters.pulled_media + counters.encoded_media == 12
                assert counters.encoded_media >= 4
            await router.close()
