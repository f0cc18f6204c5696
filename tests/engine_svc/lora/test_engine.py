"""Adapters in a whole engine: many more than there is room for, and over gRPC."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine_svc.adapters.adapter import Adapter, read_adapter
from engine_svc.executor.base import create_executor
from engine_svc.requests.request import GenerationRequest
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from quire.v1 import engine_pb2
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.engine_client import TIMEOUT, generate, generation, refusal, wait_free
from tests.support.engine_options import engine_options
from tests.support.engine_server import running_engine as serving_engine
from tests.support.run_engine import Output, random_prompts, run_requests, running_engine
from tests.support.tiny_models import make_model

MODULES = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.self_attn.o_proj": (64, 64)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"), "llama")


def make_adapters(folder: Path, count: int) -> list[Adapter]:
    found = []
    for index in range(count):
        path = write_adapter(folder / str(index), low_rank(MODULES, seed=index))
        found.append(read_adapter(f"a{index}", str(path), "", index + 1, path, 16, MODULES))
    return found


def outputs(
    base: Path, requests: Sequence[GenerationRequest], places: tuple[int, int], num_blocks: int
) -> list[Output]:
    """Returns each request's first choice, from an engine with `places` = (slots, places in host memory)."""
    slots, kept = places
    with running_engine(
        base, num_blocks, enable_lora=True, max_loras=slots, max_cpu_loras=kept, max_num_seqs=16
    ) as engine:
        found = run_requests(engine, list(requests))
        preemptions = engine.load().counters.preemptions
    assert (preemptions > 0) == (slots < kept)
    return [choices[0] for choices in found]


def test_64_adapters_over_16_requests_in_flight(tmp_path: Path, base: Path) -> None:
    adapters, generator = make_adapters(tmp_path, 64), random.Random(1)
    sampling = SamplingParameters(temperature=0.0, max_tokens=16, ignore_eos=True)
    chosen = [*adapters, *generator.choices([None, *adapters], k=16)]
    generator.shuffle(chosen)
    (prompt,) = random_prompts(20)
    requests = [
        GenerationRequest(f"r{index}", prompt, sampling, each.name if each else "", each)
        for index, each in enumerate(chosen)
    ]
    wanted = outputs(base, requests, (64, 64), 2000)
    found = outputs(base, requests, (4, 8), 10)
    assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
    by_adapter = {request.model: tuple(each.token_ids) for request, each in zip(requests, found, strict=True)}
    assert len(set(by_adapter.values())) > 32  # most adapters give a different answer


async def test_adapters_are_served_over_grpc(tmp_path: Path, base: Path) -> None:
    folders = [write_adapter(tmp_path / str(index), low_rank(MODULES, seed=index)) for index in range(2)]
    model = ModelOptions(model=str(base), served_model_name=("tiny",))
    given = {
        "enable_lora": True, "lora_modules": (f"a={folders[0]}",), "allow_runtime_lora_updating": True,
        "allowed_lora_root": str(tmp_path), "dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4,
        "use_tqdm_on_load": False,
    }  # fmt: skip
    prompt = random_prompts(20)[0]

    async with serving_engine(create_executor(engine_options().parallel), model, **given) as engine:

        async def tokens(name: str) -> list[int]:
            request = generation(prompt, model=name, max_tokens=12, ignore_eos=True)
            return [token for delta in await generate(engine, request) for token in delta.token_ids]

        first = {name: await tokens(name) for name in ("a", "tiny")}
        request = engine_pb2.LoadAdapterRequest(name="b", path="1")
        await engine.stub.LoadAdapter(request, timeout=TIMEOUT)
        first["b"] = await tokens("b")
        assert len(set(map(tuple, first.values()))) == 3
        assert {name: await tokens(name) for name in first} == first
        (tmp_path / "1" / "adapter_model.safetensors").unlink()
        await tokens("a")  # takes b's place on the device and in host memory
        assert "The adapter b cannot be read" in (await refusal(engine, generation(prompt, model="b"))).message
        assert await tokens("a") == first["a"]
        left = await engine.stub.UnloadAdapter(engine_pb2.UnloadAdapterRequest(name="b", wait_ms=10_000))
        assert left.live_requests == 0
        await wait_free(engine)


async def test_models_that_run_by_transformers_take_none(base: Path) -> None:
    given = {"enable_lora": True, "model_impl": "transformers", "dtype": "float32", "use_tqdm_on_load": False}
    executor = create_executor(engine_options().parallel)
    with pytest.raises(StartupError, match="--enable-lora"):
        async with serving_engine(executor, ModelOptions(model=str(base)), **given):
            pass
