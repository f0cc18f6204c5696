"""Choices ended by a stop string finish like any other, with their usage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quire.v1 import common_pb2
from tests.gateway.conftest import StartReplicas
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import Gateway, running_gateway
from tests.support.stream_reader import Reader
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

USAGE = {"stream_options": {"include_usage": True}}
DETAILS = {"enable_prompt_tokens_details": True}


async def spell(gateway: Gateway, *texts: str) -> list[list[int]]:
    """Returns the token ids of each text."""
    return [(await gateway.post("/tokenize", {"prompt": text})).json()["tokens"] for text in texts]


async def sample(gateway: Gateway, name: str) -> float:
    """The sum of all samples of a metric."""
    metrics = (await gateway.client.get("/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", metrics, re.M))


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_cached_is_told(tokenizer_folder: Path, stream: bool) -> None:
    """Goes through a real router, which must record the requests as completed."""
    body: dict[str, Any] = {"model": "fake", "prompt": [32] + 99 * [0], "max_tokens": 1000, "stop": ["V]"]}
    async with running_gateway(tokenizer_folder, **DETAILS) as stack:
        for cached in (0, 96):
            if stream:
                *_, last, done = await stack.events("/v1/completions", body | USAGE)
                assert (last["choices"], done) == ([], "[DONE]")
                usage = last["usage"]
            else:
                usage = (await stack.post("/v1/completions", body)).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": cached}
            assert usage["completion_tokens"] == stack.engine.record.stopped[-1][2] == 5
        assert len(stack.engine.record.finished) == len(stack.engine.record.stopped) == 2
        assert not stack.engine.record.aborted
        outcomes = "quire_router_requests_total"
        assert stack.router.metrics.get_sample_value(outcomes, {"outcome": "finished"}) == 2
        for name in ("request_queue_time_seconds", "request_prefill_time_seconds", "e2e_request_latency_seconds"):
            assert await sample(stack, f"vllm:{name}_count") == 2
        assert await sample(stack, "vllm:request_success_total") == 2


async def test_a_stopped_choice_decodes_no_further(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.002)) as stack:
        # Choice 0 says AHOV]dk, choice 1 `gnu|.
        reader = Reader(stack, "/v1/completions", {"prompt": "A", "n": 2, "max_tokens": 300, "stop": ["nu"]} | USAGE)
        choices, usage = await reader.result()
        assert (choices[1]["text"], choices[1]["finish"], choices[1]["stop"]) == ("`g", "stop", "nu")
        assert (choices[0]["finish"], choices[0]["stop"]) == ("length", None)
        assert usage is not None
        assert usage["completion_tokens"] == 304
        assert [stop[1:] for stop in stack.engine.record.stopped] == [(1, 4)]
        assert stack.engine.counters.generation_tokens < 500
        for name, total in (("request_generation_tokens", 304), ("request_max_num_generation_tokens", 300)):
            assert await sample(stack, f"vllm:{name}_sum") == total
        assert await sample(stack, "vllm:time_per_output_token_seconds_count") == 2


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["killed", "silent"])
async def test_an_answer_whose_cost_nobody_tells(start_replicas: StartReplicas, ending: str) -> None:
    """The answer is complete although the router dies or stays silent between the stop and the usage."""
    async with start_replicas(**DETAILS) as replicas:
        gateway = replicas.gateway
        for router in replicas.routers:
            router.state.outputs = await spell(gateway, "abXcdef")
            router.state.ignores_stops, router.state.hold = True, 3
        reader = Reader(gateway, "/v1/completions", {"prompt": "A", "max_tokens": 40, "stop": ["X"]} | USAGE)
        await eventually(lambda: any(router.state.stopped for router in replicas.routers))
        await eventually(lambda: reader.choices[0]["finish"], "the client waits for the usage with its last text")
        owner, other = replicas.owner()
        assert owner.state.stopped == [(0, 3)]
        if ending == "killed":
            await owner.close()
        choices, usage = await reader.result()
        assert (choices[0]["text"], choices[0]["finish"], choices[0]["stop"]) == ("ab", "stop", "X")
        assert usage is not None
        assert (usage["completion_tokens"], usage["prompt_tokens_details"]) == (3, {"cached_tokens": 0})
        assert not other.state.started
        await eventually(lambda: ending == "killed" or owner.state.aborted, "it is not told to stop")


async def test_an_abort_ends_all_choices(start_replicas: StartReplicas) -> None:
    """An abort by someone else is reported by the engine only once, and ends all unfinished choices."""
    async with start_replicas(1) as replicas:
        (router,) = replicas.routers
        router.state.outputs, router.state.hold = await spell(replicas.gateway, "abcd", "abcd", "a"), 2
        reader = Reader(replicas.gateway, "/v1/completions", {"prompt": "A", "n": 3, "max_tokens": 40})
        await eventually(lambda: reader.choices[1]["text"] == "ab" and reader.choices[2]["finish"])
        ((session,), (stream,)), abort = (router.outboxes, router.live), common_pb2.FINISH_REASON_ABORT
        session.post().deltas.add(stream_id=stream.stream_id, finish_reason=abort, is_final=True)
        choices, _ = await reader.result()
        assert [choices[index]["finish"] for index in range(3)] == ["abort", "abort", "length"]


async def test_a_request_of_several_prompts(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, **DETAILS) as replicas:
        (router,) = replicas.routers
        # Long enough that none ends by itself before its stop arrives, even on a busy machine.
        router.state.outputs = await spell(replicas.gateway, "abX" + "c" * 300, "ghijkX" + "l" * 300)
        body = {"prompt": ["A", "B"], "n": 2, "max_tokens": 400, "stop": ["X"]}
        answer = (await replicas.gateway.post("/v1/completions", body)).json()
        assert [choice["text"] for choice in answer["choices"]] == ["ab", "ghijk"] * 2
        assert answer["usage"]["completion_tokens"] == 18
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
        assert sorted(router.state.stopped) == [(0, 3), (0, 3), (1, 6), (1, 6)]
        assert not router.state.aborted


async def test_a_choice_that_is_stopped_while_its_stream_waits_for_a_router(start_replicas: StartReplicas) -> None:
    """The text with the stop string arrives only after its router is gone."""
    async with start_replicas(1) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs, router.state.hold = await spell(gateway, "abXcdef"), 2
        reader = Reader(gateway, "/v1/completions", {"prompt": "A", "max_tokens": 40, "stop": ["X"]} | USAGE)
        await eventually(lambda: reader.choices[0]["text"] == "ab")
        (session,), (stream,) = router.outboxes, router.live
        session.post().deltas.add(stream_id=stream.stream_id, token_ids=router.state.outputs[0][2:3])
        router.state.closed = True
        choices, usage = await reader.result()
        assert (choices[0]["text"], choices[0]["stop"]) == ("ab", "X")
        assert usage is not None
        assert usage["completion_tokens"] == 3
