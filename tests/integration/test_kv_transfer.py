"""Two deployments with an engine each, and a proxy that has one compute a prompt and the other one continue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_svc.executor.base import create_executor
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from router.app import Router
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.gateway_stack import Gateway, gateway_before
from tests.support.run_engine import random_prompts
from tests.support.tiny_models import make_model

pytestmark = pytest.mark.slow

SECRET = RpcSecurityOptions(grpc_token="shared")


@dataclass
class Deployment:
    """An engine, a router and a gateway."""

    engine: RunningEngine
    gateway: Gateway

    @property
    def loaded_tokens(self) -> int:
        return self.engine.worker.load_now().counters.external_cache_hits

    async def generate(self, prompt: list[int], num_tokens: int, **fields: Any) -> dict[str, Any]:
        sampling = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        body = {"token_ids": prompt, "sampling_params": sampling} | fields
        response = await self.gateway.post("/inference/v1/generate", body)
        assert response.status_code == 200, response.text
        return dict(response.json())


@contextlib.asynccontextmanager
async def deployment(model: Path, role: str, folder: Path) -> AsyncIterator[Deployment]:
    """With a connector to the other one; who generates has it as one of three tiers."""
    extra = {"local_storage_path": str(folder / role)}
    config = {"kv_connector": "GrpcConnector", "kv_role": role, "kv_connector_extra_config": extra}
    if role == "kv_consumer":
        memory = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 2**20}}
        shared = {
            "kv_connector": "SharedStorageConnector", "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": str(folder / "shared")},
        }  # fmt: skip
        config = {
            "kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [config, shared, memory]}
        }  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            running_engine(
                create_executor(ParallelOptions()), ModelOptions(model=str(model)), security=SECRET, dtype="float32",
                kv_transfer_config=config, num_gpu_blocks_override=128, use_tqdm_on_load=False,
            )
        )  # fmt: skip
        router = Router(RouterOptions(workers=(engine.address,)), GrpcServerOptions(), SECRET)
        await router.start()
        stack.push_async_callback(router.close)
        gateway = await stack.enter_async_context(
            gateway_before(
                [f"127.0.0.1:{router.server.port}"], [], security=SECRET, skip_tokenizer_init=True,
                enable_scale_out=True, enable_kv_transfer_params=True,
            )
        )  # fmt: skip
        yield Deployment(engine, gateway)


async def test_the_other_deployment_continues_with_the_blocks(tmp_path: Path) -> None:
    """With the tokens that it has without them; they are found as soon as the prefill is answered. If the other one is
    gone, it computes."""
    model = make_model(tmp_path / "model", "llama")
    prompts = random_prompts(100, 100, 100, seed=3)
    async with deployment(model, "kv_consumer", tmp_path) as decode:
        whole = [await decode.generate(prompt, 10, cache_salt="another") for prompt in prompts]
        async with deployment(model, "kv_producer", tmp_path) as prefill:
            params = []
            for prompt in prompts:
                answer = await prefill.generate(prompt, 1, kv_transfer_params={"do_remote_decode": True})
                params.append(answer["kv_transfer_params"])
            continued = [
                await decode.generate(prompt, 10, kv_transfer_params=params[number])
                for number, prompt in enumerate(prompts[:2])
            ]
            loaded = decode.loaded_tokens
        continued.append(await decode.generate(prompts[2], 10, kv_transfer_params=params[2]))
    assert [each["choices"] for each in continued] == [each["choices"] for each in whole]
    assert loaded == decode.loaded_tokens == 2 * 96
