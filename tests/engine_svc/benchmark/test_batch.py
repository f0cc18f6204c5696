"""Batch benchmarks on an engine without a model: what is counted, and which prompts are refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine_svc.benchmark.batch import Batch, Prompt, run_batch, write_json
from engine_svc.benchmark.latency import latency_result
from engine_svc.benchmark.throughput import throughput_result
from engine_svc.worker import EngineWorker
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[EngineWorker]:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    running = EngineWorker(FakeExecutor(), ModelOptions(model=str(tmp_path)), engine_options())
    await running.load()
    yield running
    await running.loop.stop()


@pytest.mark.parametrize("n", [1, 3])
async def test_all_tokens_are_counted(worker: EngineWorker, n: int) -> None:
    prompts = [Prompt([5, 6, 7], 4), Prompt([8], 2)]
    for _ in range(2):  # an engine can run several batches, one after the other
        batch = await run_batch(worker, prompts, n)
        assert (batch.prompt_tokens, batch.output_tokens) == (4, 6 * n)
        assert batch.seconds > 0


async def test_a_prompt_that_does_not_fit_is_named(worker: EngineWorker) -> None:
    long = Prompt([5] * (worker.info.limits.max_model_len + 1), 1)
    with pytest.raises(StartupError, match="prompt 1: "):
        await run_batch(worker, [Prompt([5], 1), long], 1)


def test_results_have_vllms_keys() -> None:
    assert throughput_result("m", 4, Batch(2.0, 30, 10)) == {
        "model_id": "m", "elapsed_time": 2.0, "num_requests": 4, "total_num_tokens": 40, "requests_per_second": 2.0,
        "tokens_per_second": 20.0,
    }  # fmt: skip
    assert latency_result("m", [3.0, 1.0, 2.0]) == {
        "model_id": "m", "avg_latency": 2.0, "latencies": [3.0, 1.0, 2.0],
        "percentiles": pytest.approx({"10": 1.2, "25": 1.5, "50": 2.0, "75": 2.5, "90": 2.8, "99": 2.98}),
    }  # fmt: skip


def test_where_the_result_cannot_be_written(tmp_path: Path) -> None:
    write_json(str(tmp_path / "r.json"), {"a": 1})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": 1}
    with pytest.raises(StartupError, match="--output-json"):
        write_json(str(tmp_path / "none" / "r.json"), {})
