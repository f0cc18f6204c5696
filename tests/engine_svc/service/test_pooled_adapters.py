"""Adapters on a classifier over gRPC: loaded, requested and unloaded while the worker runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from quire.errors import NotFound
from quire.options.model import ModelOptions
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, engine_pb2
from tests.support.engine_client import TIMEOUT
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.lora import merge, modules_of, write_adapter
from tests.support.pooled_models import make_pooled, reference
from tests.support.run_engine import random_prompts

PROMPTS = random_prompts(3, 20)


async def logits(engine: RunningEngine, model: str) -> torch.Tensor:
    request = common_pb2.PoolRequest(model=model, parameters=common_pb2.PoolingParameters(use_activation=False))
    for token_ids in PROMPTS:
        request.inputs.add(token_ids=token_ids)
    answer = await engine.stub.Pool(request, timeout=TIMEOUT)
    return torch.from_numpy(np.stack([np.frombuffer(each.data, "<f4") for each in answer.outputs]))


@pytest.mark.slow
async def test_adapters_come_and_go_while_a_classifier_runs(tmp_path: Path) -> None:
    base = make_pooled(tmp_path / "base", "qwen3", "ForSequenceClassification")
    options = {"allow_runtime_lora_updating": True, "allowed_lora_root": str(tmp_path), "max_loras": 2}
    served = ModelOptions(str(base), served_model_name=("base",))
    async with running_engine(model=served, dtype="float32", enable_lora=True, **options) as engine:
        shapes = {f"model.layers.{layer}.self_attn.q_proj": (64, 64) for layer in range(3)}
        modules = modules_of(base, shapes, ("q_proj",))
        own = {"score": torch.randn_like(load_file(base / "model.safetensors")["score.weight"])}
        adapters = [write_adapter(tmp_path / name, modules, seed=seed) for seed, name in enumerate(("a", "b"))]
        adapters.append(write_adapter(tmp_path / "c", modules, seed=5, whole=own))
        for name in ("a", "b", "c"):
            await engine.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name=name, path=name), timeout=TIMEOUT)
        found = await asyncio.gather(*(logits(engine, name) for name in ("a", "b", "base", "c", "a")))
        auto = transformers.AutoModelForSequenceClassification
        folders = [merge(base, adapter, tmp_path / f"merged-{at}") for at, adapter in enumerate(adapters[:2])]
        for values, folder in zip(found[:3], (*folders, base), strict=True):
            torch.testing.assert_close(values, torch.stack(reference(folder, PROMPTS, auto)), atol=1e-3, rtol=1e-3)
        assert torch.equal(found[4], found[0])
        assert not torch.allclose(found[3], found[2])
        unload = engine_pb2.UnloadAdapterRequest(name="a", wait_ms=10_000)
        assert (await engine.stub.UnloadAdapter(unload, timeout=TIMEOUT)).live_requests == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await logits(engine, "a")
        assert isinstance(from_rpc_error(caught.value), NotFound)
        assert torch.equal(await logits(engine, "b"), found[1])
