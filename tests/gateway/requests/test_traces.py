"""Traces of requests from the gateway to the engine: the spans of each service, and their parents."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from router.app import Router
from tests.support.engine_server import running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.gateway_stack import SECURITY, Gateway, GatewayStack, gateway_before, running_tokenizer
from tests.support.traces import PARENT_ID, TRACE_ID, TRACEPARENT, MemoryTracer
from tests.support.waiting import eventually

ENCODE = "quire.v1.TokenizerService/Encode"
Start = Callable[[MemoryTracer], AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def start(tokenizer_folder: Path) -> Start:
    """All four services, sharing one tracer."""

    @contextlib.asynccontextmanager
    async def run(tracer: MemoryTracer) -> AsyncIterator[Gateway]:
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(running_engine(FakeExecutor(step_seconds=0.005), tracer=tracer))
            router = Router(RouterOptions(workers=(engine.address,)), GrpcServerOptions(), SECURITY, tracer=tracer)
            await router.start()
            stack.push_async_callback(router.close)
            tokenizer = await stack.enter_async_context(running_tokenizer(tokenizer_folder, tracer))
            places = [f"127.0.0.1:{router.server.port}"], [f"127.0.0.1:{tokenizer.port}"]
            gateway = await stack.enter_async_context(gateway_before(*places, tracer))
            yield gateway
            await eventually(lambda: not gateway.context.pipeline.num_live, "requests stay")

    return run


async def test_one_trace_through_all_services(start: Start) -> None:
    tracer = MemoryTracer("all")
    async with start(tracer) as gateway:
        body = {"model": "fake", "prompt": "Hello", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "n": 2}
        answer = await gateway.post("/v1/completions", body, traceparent=TRACEPARENT, **{"x-request-id": "abc"})
        assert answer.status_code == 200, answer.text
    spans = tracer.named()
    assert {span.trace_id for span in spans.values()} == {TRACE_ID}
    assert not any(span.failed for span in spans.values())
    http, asked, routed, engine = (spans[name] for name in ("POST /v1/completions", "llm_request", "route", "engine"))
    parents = {name: span.parent_id for name, span in spans.items()}
    assert parents == {
        "POST /v1/completions": PARENT_ID, ENCODE: http.span_id, "llm_request": http.span_id,
        "route": asked.span_id, "engine": routed.span_id,
        **dict.fromkeys(("queue", "prefill", "decode"), engine.span_id),
    }  # fmt: skip
    assert http.attributes["http.response.status_code"] == 200
    told = asked.attributes
    assert (told["gen_ai.request.id"], told["gen_ai.request.max_tokens"], told["gen_ai.request.n"]) == ("abc", 3, 2)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert (told["gen_ai.usage.prompt_tokens"], told["gen_ai.usage.completion_tokens"]) == (5, 6)
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    assert 0 <= told["gen_ai.latency.time_in_queue"] <= told["gen_ai.latency.e2e"]
    assert (routed.attributes["quire.outcome"], routed.attributes["quire.attempts"]) == ("finished", 1)
    assert engine.attributes["gen_ai.usage.completion_tokens"] == 6
    for name in ("forward", "execute"):
        assert 0 <= engine.attributes[f"gen_ai.latency.time_in_model_{name}"] < 60
    assert engine.start <= spans["queue"].start <= spans["prefill"].start <= spans["decode"].start


async def test_a_search_for_beams_took_all_of_its_steps(start: Start) -> None:
    tracer = MemoryTracer()
    async with start(tracer) as gateway:
        await gateway.complete(use_beam_search=True, n=2, max_tokens=5)
        metrics = (await gateway.client.get("/metrics")).text
    told = {span.name: span.attributes for span in tracer.spans()}["llm_request"]
    assert 4 * 0.005 <= told["gen_ai.latency.time_in_model_decode"] < told["gen_ai.latency.e2e"]
    # Choices that arrive whole have no time per token.
    assert 'vllm:time_per_output_token_seconds_count{engine="0",model_name="fake"} 0.0' in metrics


async def test_without_details_no_phases_and_without_a_client_its_own_trace(start: Start) -> None:
    tracer = MemoryTracer()
    async with start(tracer) as gateway:
        await gateway.complete()
        await gateway.client.get("/health")
    spans = tracer.named()
    assert spans.keys() == {"POST /v1/completions", "llm_request", "route", "engine"}
    assert spans["POST /v1/completions"].parent_id == ""
    assert "gen_ai.latency.time_in_model_forward" not in spans["engine"].attributes


async def test_what_fails_says_so(start: Start) -> None:
    tracer = MemoryTracer()
    async with start(tracer) as gateway:
        assert (await gateway.post("/v1/completions", {"model": "other", "prompt": [1]})).status_code == 404
        assert (await gateway.post("/nowhere/secret", {})).status_code == 404
        assert (await gateway.client.get("/v1/models/v1")).status_code == 404
    spans = tracer.named()
    assert spans["POST /v1/completions"].attributes["http.response.status_code"] == 404
    assert "http.route" not in spans["POST"].attributes
    assert spans["GET /v1/models/{model:path}"].attributes["url.path"] == "/v1/models/v1"
    assert "llm_request" not in spans


async def test_a_client_that_leaves_ends_its_spans(start: Start) -> None:
    tracer = MemoryTracer()
    async with start(tracer) as gateway:
        body = {"model": "fake", "prompt": [65], "max_tokens": 400, "stream": True, "ignore_eos": True}
        async with gateway.client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            await anext(response.aiter_lines())
        await eventually(lambda: len(tracer.ended()) == 4, "a span stays open")
    spans = tracer.named()
    assert spans["route"].attributes["quire.outcome"] == "aborted"
    assert spans["engine"].attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert spans["llm_request"].failed


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("state", ["vendor=1", "x" * 513])
async def test_off_the_clients_trace_is_passed_on(gateway: GatewayStack, state: str) -> None:
    headers = {"traceparent": TRACEPARENT, "tracestate": state}
    answer = await gateway.post("/v1/completions", {"model": "fake", "prompt": [65]}, **headers)
    assert answer.status_code == 200
    generation = gateway.engine.record.started[-1]
    assert (generation.traceparent, generation.tracestate) == (TRACEPARENT, state if len(state) < 512 else "")


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_no_trace_is_passed_over(gateway: GatewayStack) -> None:
    answer = await gateway.post("/v1/completions", {"model": "fake", "prompt": [65]}, traceparent="00-what-01")
    assert answer.status_code == 200
    assert gateway.engine.record.started[-1].traceparent == ""
