"""`/metrics` is accurate for the whole fleet, through changes and under load."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from quire.v1 import common_pb2
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.gateway_stack import Gateway, GatewayStack, running_gateway
from tests.support.stream_reader import Reader
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def figures(gateway: Gateway) -> dict[str, float]:
    """Metric name plus labels (without model_name and engine) → value, for the model `fake`."""
    text = (await gateway.client.get("/metrics")).text
    found = re.findall(r'^vllm:(\w+)\{engine="0",(.*)model_name="fake"\} (\S+)$', text, re.M)
    return {name + labels: float(value) for name, labels, value in found}


async def wait_for(gateway: Gateway, **wanted: float) -> None:
    """Waits until the metrics have these values."""
    seen: dict[str, float] = {}
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while {name: seen.get(name) for name in wanted} != wanted:
                await asyncio.sleep(0.02)
                seen = await figures(gateway)
    except TimeoutError:
        pytest.fail(f"wanted {wanted}, found {seen}")


async def add_engine(stack: GatewayStack) -> FakeEngine:
    engine = await FakeEngine(FakeOptions(step_seconds=0.001)).start()
    stack.router.registry.announce("test", [engine.address])
    return engine


@pytest.mark.slow
async def test_counters_never_fall(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder) as stack:
        second = await add_engine(stack)
        stack.engine.counters.generation_tokens = 1000
        second.counters.generation_tokens = 900
        second.counters.iteration_tokens.MergeFrom(common_pb2.Histogram(bounds=[1, 8], counts=[4, 3, 2], sum=70))
        await wait_for(stack, generation_tokens_total=1900, iteration_tokens_total_count=9)
        stack.router.registry.announce("test", [])
        await wait_for(stack, generation_tokens_total=1900, iteration_tokens_total_count=9)
        while len(stack.context.fleet.workers) > 1:
            await asyncio.sleep(0.01)
        stack.engine.counters.generation_tokens = 7  # after a restart
        await wait_for(stack, generation_tokens_total=1907, iteration_tokens_total_count=9)
        stack.router.registry.announce("test", [second.address])
        second.counters.generation_tokens = 910
        await wait_for(stack, generation_tokens_total=1917, iteration_tokens_total_count=9)
        await second.close()


async def test_requests_that_wait_in_the_router_are_waiting(tokenizer_folder: Path) -> None:
    options = FakeOptions(step_seconds=0.001, max_num_seqs=1, silent=True)
    async with running_gateway(tokenizer_folder, options) as stack:
        answers = [asyncio.create_task(stack.complete()) for _ in range(8)]
        await wait_for(stack, num_requests_waiting=8, num_requests_running=0)
        assert len(stack.engine.live) < 8
        stack.engine.options = FakeOptions(step_seconds=0.001, max_num_seqs=1)
        await asyncio.gather(*answers)
        await wait_for(stack, num_requests_waiting=0, num_requests_running=0)
        told = await figures(stack)
        # The fake engine reports no times of its own.
        assert told["request_queue_time_seconds_count"] == told["time_in_queue_requests_count"] == 8
        assert told["request_queue_time_seconds_sum"] == told["time_in_queue_requests_sum"] > 0


async def test_nothing_runs_after_an_abort(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder) as stack:
        reader = Reader(stack, "/v1/completions", {"prompt": "A", "n": 3, "max_tokens": 4000})
        await wait_for(stack, num_requests_running=3)
        reader.task.cancel()
        await wait_for(stack, num_requests_running=0, num_requests_waiting=0, kv_cache_usage_perc=0)


async def test_a_worker_that_takes_nothing_new_still_runs_what_it_has(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder) as stack:
        reader = Reader(stack, "/v1/completions", {"prompt": "A", "max_tokens": 4000})
        await wait_for(stack, num_requests_running=1)
        second = await add_engine(stack)
        await stack.engine.rpc.set_serving(False)
        while len(stack.context.fleet.ready) != 1 or len(stack.context.fleet.workers) != 2:
            await asyncio.sleep(0.01)
        await wait_for(stack, num_requests_running=1)
        reader.task.cancel()
        await wait_for(stack, num_requests_running=0)
        await second.close()


@pytest.mark.parametrize(
    ("load", "counters", "wanted"),
    [
        ({}, {}, {"num_requests_swapped": 0, "cpu_cache_usage_perc": 0, "cpu_prefix_cache_hit_rate": 0}),
        (
            {"swapped_sequences": 3, "used_host_blocks": 10, "total_host_blocks": 40},
            {
                "prefix_cache_queries": 100, "prefix_cache_hits": 50, "external_cache_queries": 50,
                "external_cache_hits": 30, "host_cache_hits": 10, "host_saved_bytes": 7000, "host_loaded_bytes": 2000,
            },
            {
                "num_requests_swapped": 3, "cpu_cache_usage_perc": 0.25, "cpu_prefix_cache_hit_rate": 0.2,
                "gpu_prefix_cache_hit_rate": 0.5, "gpu_prefix_cache_queries_total": 100,
                "gpu_prefix_cache_hits_total": 50, "prefix_cache_hits_total": 50, "prompt_tokens_cached_total": 80,
                "external_prefix_cache_queries_total": 50, "external_prefix_cache_hits_total": 30,
                "cpu_prefix_cache_hits_total": 10,
            },
        ),
    ],
)  # fmt: skip
async def test_the_host_tier(
    tokenizer_folder: Path, load: dict[str, Any], counters: dict[str, Any], wanted: dict[str, float]
) -> None:
    async with running_gateway(tokenizer_folder) as stack:
        stack.engine.extra_load = common_pb2.EngineLoad(**load, counters=common_pb2.EngineCounters(**counters))
        await wait_for(stack, **wanted)
        text = (await stack.client.get("/metrics")).text
    for direction, field in (("GPU_to_CPU", "host_saved_bytes"), ("CPU_to_GPU", "host_loaded_bytes")):
        labels = f'{{engine="0",model_name="fake",transfer_type="{direction}"}}'
        assert f"vllm:kv_offload_total_bytes_total{labels} {float(counters.get(field, 0))}" in text


async def test_speculation(tokenizer_folder: Path) -> None:
    """Of ten four-token drafts, two are fully accepted, three have one accepted token, and five none."""
    counts = [0] * 66
    counts[0], counts[1], counts[4] = 5, 3, 2
    accepted = common_pb2.Histogram(bounds=range(65), counts=counts, sum=11)
    counters = common_pb2.EngineCounters(
        draft_tokens=40, draft_emitted_tokens=20, draft_failures=1, draft_accepted_tokens=accepted
    )
    async with running_gateway(tokenizer_folder) as stack:
        stack.engine.extra_load = common_pb2.EngineLoad(counters=counters)
        await wait_for(
            stack, spec_decode_draft_acceptance_rate=11 / 40, spec_decode_efficiency=20 / 50,
            spec_decode_num_drafts_total=10, spec_decode_num_draft_tokens_total=40, spec_decode_num_failures_total=1,
            spec_decode_num_accepted_tokens_total=11, spec_decode_num_emitted_tokens_total=20,
        )  # fmt: skip
        text = (await stack.client.get("/metrics")).text
    for position, count in enumerate((5.0, 2.0, 2.0, 2.0)):
        labels = f'{{engine="0",model_name="fake",position="{position}"}}'
        assert f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} {count}" in text
    assert 'position="4"' not in text


async def test_what_does_not_exist_is_not_told(gateway: GatewayStack) -> None:
    await gateway.complete()
    text = (await gateway.client.get("/metrics")).text
    assert "num_requests_running" in text
    assert "spec_decode" not in text
    assert "lora" not in text
    assert 'le="1.0"' in text


async def test_http_requests_by_route_and_status(tokenizer_folder: Path) -> None:
    """Requests that are refused count too; those that are polled do not."""
    async with running_gateway(tokenizer_folder) as stack:
        await stack.complete()
        await stack.events("/v1/completions", {"prompt": "A"})
        assert (await stack.post("/v1/completions", {"prompt": "A", "n": 0})).status_code == 400
        assert (await stack.post("/v1/completions", {"prompt": "A", "model": "other"})).status_code == 404
        assert (await stack.client.get("/v1/models/fake")).status_code == 200
        assert (await stack.client.get("/health")).status_code == 200
        assert (await stack.client.get("/nowhere")).status_code == 404
        text = (await stack.client.get("/metrics")).text
    labels = r'{handler="(.+?)",method="(.+?)"'
    requests = {
        tuple(found) for found in re.findall(labels.join(("http_requests_total", r',status="(.+)"} (.+)')), text)
    }
    assert requests == {
        ("/v1/completions", "POST", "2xx", "2.0"), ("/v1/completions", "POST", "4xx", "2.0"),
        ("/v1/models/{model:path}", "GET", "2xx", "1.0"), ("none", "GET", "4xx", "1.0"),
    }  # fmt: skip
    times = {tuple(found) for found in re.findall(labels.join(("http_request_duration_seconds_count", "} (.+)")), text)}
    assert times == {
        ("/v1/completions", "POST", "4.0"), ("/v1/models/{model:path}", "GET", "1.0"), ("none", "GET", "1.0")
    }  # fmt: skip
    assert "http_request_duration_highr_seconds_count 6.0" in text


async def test_how_many_tokens_prompts_computed(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder) as stack:
        stack.engine.extra_load = common_pb2.EngineLoad(counters=common_pb2.EngineCounters(prefix_cache_hits=80))
        await stack.complete(prompt=[[65] * 3, [66] * 4])
        await wait_for(
            stack, request_prefill_kv_computed_tokens_count=2, request_prefill_kv_computed_tokens_sum=7,
            request_num_preemptions_count=2, request_num_preemptions_sum=0, prompt_tokens_cached_total=80,
        )  # fmt: skip
