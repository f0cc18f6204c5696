"""EngineService over real sockets, with a real engine on the fake executor."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from engine_svc.core import loop as loop_module
from engine_svc.core.loop import Sink
from engine_svc.executor.base import ExecutorDead
from engine_svc.plan import StepPlan
from engine_svc.requests.admission import sequence_seed
from engine_svc.requests.outputs import SequenceDelta
from engine_svc.requests.request import GenerationRequest
from engine_svc.service.session import EngineSession
from quire.errors import ContextTooLong, DeadlineExceeded, Internal, InvalidRequest, NotFound, Overloaded, QuireError
from quire.prompt_embeds import PromptEmbeds
from quire.rpc.status import from_request_error, from_rpc_error
from quire.v1 import common_pb2, engine_pb2
from tests.support.engine_client import (
    TIMEOUT,
    VOCABULARY,
    expected,
    generate,
    generated,
    generation,
    refusal,
    wait_free,
)
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan


class Client:
    """A session's client, which sends messages and collects deltas by stream."""

    def __init__(self, engine: RunningEngine) -> None:
        self.call = engine.stub.Session(timeout=TIMEOUT)
        self.tokens: dict[int, list[int]] = {}
        self.final: dict[int, common_pb2.GenerationDelta] = {}
        self.loads: list[common_pb2.EngineLoad] = []
        self.frames = 0

    async def start(self, **generations: common_pb2.Generation) -> None:
        starts = [
            engine_pb2.SessionStart(stream_id=int(name[1:]), generation=each) for name, each in generations.items()
        ]
        await self.call.write(engine_pb2.EngineServiceSessionRequest(starts=starts))

    async def abort(self, *stream_ids: int) -> None:
        await self.call.write(engine_pb2.EngineServiceSessionRequest(abort_stream_ids=stream_ids))

    async def stop(self, stream_id: int, choice: int, count: int) -> None:
        stop = engine_pb2.SequenceStop(stream_id=stream_id, choice_index=choice, num_output_tokens=count)
        await self.call.write(engine_pb2.EngineServiceSessionRequest(stops=[stop]))

    async def read(self) -> engine_pb2.EngineServiceSessionResponse:
        frame = await self.call.read()
        assert frame is not grpc.aio.EOF
        self.frames += 1
        for delta in frame.deltas:
            assert delta.stream_id not in self.final
            self.tokens.setdefault(delta.stream_id, []).extend(delta.token_ids)
            if delta.is_final:
                self.final[delta.stream_id] = delta
        if frame.HasField("load"):
            self.loads.append(frame.load)
        return frame

    async def read_until(self, count: int) -> None:
        while len(self.final) < count:
            await self.read()


async def test_generate_streams_tokens_and_accounts() -> None:
    async with running_engine() as engine:
        prompt = list(range(40))
        deltas = await generate(engine, generation(prompt, max_tokens=20, logprobs=2, prompt_logprobs=0))
        assert [token for delta in deltas for token in delta.token_ids] == expected(prompt, 20)
        assert [delta.is_final for delta in deltas] == [False] * 19 + [True]
        assert len(deltas[0].prompt_logprobs) == 39
        assert all(len(delta.logprobs) == 1 and len(delta.logprobs[0].token_ids) == 3 for delta in deltas)
        last = deltas[-1]
        assert last.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (40, 20)
        await wait_free(engine)


async def test_generate_choices_and_stop_tokens() -> None:
    async with running_engine() as engine:
        deltas = await generate(engine, generation([1, 2, 3], n=3, max_tokens=8, temperature=1.0, seed=9))
        tokens: dict[int, list[int]] = {}
        for delta in deltas:
            tokens.setdefault(delta.choice_index, []).extend(delta.token_ids)
        for choice in range(3):
            plan = sampling_plan(temperature=1.0, seed=sequence_seed(9, choice))
            assert tokens[choice] == expected_tokens([1, 2, 3], 8, VOCABULARY, plan)
        assert [delta.is_final for delta in deltas].count(True) == 1
        stop = expected([5], 4)[3]
        deltas = await generate(engine, generation([5], max_tokens=50, stop_token_ids=[stop]))
        assert deltas[-1].finish_reason == common_pb2.FINISH_REASON_STOP
        assert deltas[-1].stop_token_id == stop


@pytest.mark.parametrize(
    ("fields", "parameter", "kind"),
    [
        ({"n": 129}, "n", InvalidRequest),
        ({"n": 10**9}, "n", InvalidRequest),
        ({"temperature": 2.1}, "temperature", InvalidRequest),
        ({"temperature": math.nan}, "temperature", InvalidRequest),
        ({"temperature": -0.1}, "temperature", InvalidRequest),
        ({"top_p": 0.0}, "top_p", InvalidRequest),
        ({"top_p": math.inf}, "top_p", InvalidRequest),
        ({"min_p": 1.5}, "min_p", InvalidRequest),
        ({"presence_penalty": 2.5}, "presence_penalty", InvalidRequest),
        ({"frequency_penalty": -math.inf}, "frequency_penalty", InvalidRequest),
        ({"repetition_penalty": 0.0}, "repetition_penalty", InvalidRequest),
        ({"repetition_penalty": math.inf}, "repetition_penalty", InvalidRequest),
        ({"logprobs": 21}, "logprobs", InvalidRequest),
        ({"prompt_logprobs": 2**31}, "prompt_logprobs", InvalidRequest),
        ({"stop_token_ids": list(range(129))}, "stop_token_ids", InvalidRequest),
        ({"stop_token_ids": [1000]}, "stop_token_ids", InvalidRequest),
        ({"logit_bias": {1000: 1.0}}, "logit_bias", InvalidRequest),
        ({"logit_bias": {1: math.nan}}, "logit_bias", InvalidRequest),
        ({"logit_bias": {1: 101.0}}, "logit_bias", InvalidRequest),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", InvalidRequest),
        ({"max_tokens": 2046}, "max_tokens", ContextTooLong),
        ({"min_tokens": 2**31 - 1}, "min_tokens", ContextTooLong),
        ({"priority": 1}, "priority", InvalidRequest),
        ({"vllm_xargs": b'{"a": "\xff"}'}, "vllm_xargs", InvalidRequest),
        ({"cache_salt": "x" * 129}, "cache_salt", InvalidRequest),
        ({"request_id": "a b"}, "request_id", InvalidRequest),
        ({"timeout_ms": 2**63}, "timeout_ms", InvalidRequest),
        ({"model": "other"}, "model", NotFound),
        ({"max_tokens": 8, "progress": [[1], [2]]}, "progress", InvalidRequest),
        ({"max_tokens": 8, "n": 3, "progress": [[1], [2]]}, "progress", InvalidRequest),
        ({"max_tokens": 8, "progress": [[1, 1000]]}, "progress", InvalidRequest),
        ({"max_tokens": 8, "progress": [[1] * 8]}, "progress", InvalidRequest),
        ({"max_tokens": 8, "n": 2, "progress": [[1], [1] * 9]}, "progress", InvalidRequest),
        ({"max_tokens": 0, "progress": [[]]}, "progress", InvalidRequest),
        ({"progress": [[1] * 2045]}, "progress", InvalidRequest),
        ({"temperature": 0.5, "progress": [[1]]}, "progress", InvalidRequest),
    ],
)
async def test_bounds(fields: dict[str, Any], parameter: str, kind: type[QuireError]) -> None:
    async with running_engine() as engine:
        error = await refusal(engine, generation([1, 2, 3], **fields))
        assert type(error) is kind
        assert error.parameter == parameter
        assert len(error.message) < 500


async def test_progress_of_sequences_that_have_all_finished() -> None:
    async with running_engine() as engine:
        request = generation([1, 2, 3], max_tokens=8, progress=[[1, 2]])
        request.progress[0].finished = True
        error = await refusal(engine, request)
        assert (type(error), error.parameter) == (InvalidRequest, "progress")
        assert "nothing left" in error.message


async def test_a_request_that_another_worker_began() -> None:
    prompt, output = list(range(40)), expected(list(range(40)), 12)
    async with running_engine() as engine:
        client = Client(engine)
        requests = {f"s{cut}": generation(prompt, max_tokens=12, progress=[output[:cut]]) for cut in range(1, 12)}
        await client.start(**requests)
        await client.read_until(11)
        for cut in range(1, 12):
            assert client.tokens[cut] == output[cut:]
            assert client.final[cut].finish_reason == common_pb2.FINISH_REASON_LENGTH
            usage = client.final[cut].usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (40, 12)
            assert usage.cached_prompt_tokens <= 40
        # Two sequences, one of which has finished; then one without any output yet, for which no seed is needed.
        request = generation(prompt, n=2, max_tokens=12, progress=[output, output[:5]], prompt_logprobs=0)
        request.progress[0].finished = True
        deltas = await generate(engine, request)
        assert {delta.choice_index for delta in deltas} == {1}
        assert [token for delta in deltas for token in delta.token_ids] == output[5:]
        assert not any(delta.prompt_logprobs for delta in deltas)
        assert deltas[-1].is_final
        assert len(await generated(engine, generation(prompt, temperature=1.0, max_tokens=3, progress=[[]]))) == 3
        await wait_free(engine)


async def test_prompts_that_cannot_be() -> None:
    async with running_engine() as engine:
        for prompt in ([], [1000], [1, 2**32 - 1]):
            assert isinstance(await refusal(engine, generation(prompt)), InvalidRequest)
        error = await refusal(engine, generation([1] * 2048))
        assert isinstance(error, ContextTooLong)
        assert "2048" in error.message
        error = await refusal(engine, generation([1] * 2000, max_tokens=100))
        assert "2000" in error.message
        assert "2048" in error.message


async def test_a_request_that_never_fits_the_cache_is_refused() -> None:
    async with running_engine(num_gpu_blocks_override=4) as engine:
        error = await refusal(engine, generation([1] * 60, max_tokens=10))
        assert isinstance(error, ContextTooLong)
        assert "64" in error.message
        deltas = await generate(engine, generation([1] * 60))
        assert sum(len(delta.token_ids) for delta in deltas) == 4


async def test_session_carries_many_requests_in_few_frames() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.005)) as engine:
        client = Client(engine)
        await client.start(**{f"s{index}": generation([index, 7], max_tokens=30) for index in range(1, 33)})
        await client.read_until(32)
        assert all(client.tokens[index] == expected([index, 7], 30) for index in range(1, 33))
        assert client.frames < 32 * 30 / 4
        await client.call.done_writing()
        while (await client.call.read()) is not grpc.aio.EOF:
            continue
        assert await client.call.code() == grpc.StatusCode.OK
        await wait_free(engine)


async def test_a_streams_first_and_last_tokens_wait_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_PAUSE_SECONDS", 3600.0)
    steps, go_on = itertools.count(), threading.Event()

    def stop_after_some(_: StepPlan) -> None:
        if next(steps) == 3:
            go_on.wait(TIMEOUT)

    async with running_engine(FakeExecutor(on_step=stop_after_some)) as engine:
        client = Client(engine)
        await client.start(s1=generation([1, 2], max_tokens=40))
        while not client.tokens:
            await client.read()
        assert len(client.tokens[1]) <= 3
        go_on.set()
        await client.read_until(1)
        assert client.tokens[1] == expected([1, 2], 40)


async def test_session_heartbeats_when_idle() -> None:
    async with running_engine() as engine:
        client = Client(engine)
        await client.call.write(engine_pb2.EngineServiceSessionRequest())
        for _ in range(3):
            await client.read()
        assert len(client.loads) == 3
        assert client.loads[-1].total_kv_blocks == 4096
        client.call.cancel()


async def test_session_reports_errors_per_request() -> None:
    async with running_engine() as engine:
        client = Client(engine)
        await client.start(s1=generation([1], max_tokens=5), s2=generation([]), s3=generation([1], model="other"))
        await client.read_until(3)
        assert client.tokens[1] == expected([1], 5)
        assert isinstance(from_request_error(client.final[2].error), InvalidRequest)
        assert isinstance(from_request_error(client.final[3].error), NotFound)
        assert client.final[2].finish_reason == common_pb2.FINISH_REASON_ERROR


async def test_a_request_that_the_engine_stumbles_over_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine() as engine:
        submit = engine.worker.submit

        def stumble(request: GenerationRequest, sink: Sink) -> int:
            if request.prompt_token_ids == [2]:
                raise ZeroDivisionError
            return submit(request, sink)

        monkeypatch.setattr(engine.worker, "submit", stumble)
        client = Client(engine)
        await client.start(s1=generation([1], max_tokens=5), s2=generation([2]), s3=generation([3], max_tokens=5))
        await client.read_until(3)
        assert (client.tokens[1], client.tokens[3]) == (expected([1], 5), expected([3], 5))
        assert isinstance(from_request_error(client.final[2].error), Internal)
        assert "ZeroDivisionError" in caplog.text


async def test_session_refuses_a_stream_id_in_use() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.01)) as engine:
        client = Client(engine)
        await client.start(s1=generation([1], max_tokens=500))
        await client.start(s1=generation([1], max_tokens=500))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read_until(2)
        assert from_rpc_error(caught.value).parameter == "stream_id"
        await wait_free(engine)


async def test_session_aborts_and_a_lost_session_frees_all() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.005)) as engine:
        client = Client(engine)
        await client.start(s1=generation([1], max_tokens=1000), s2=generation([2], max_tokens=1000))
        await client.read()
        await client.abort(1)
        await client.read_until(1)
        assert client.final[1].finish_reason == common_pb2.FINISH_REASON_ABORT
        assert engine.worker.loop.load().used_kv_blocks > 0
        client.call.cancel()
        await wait_free(engine)


async def test_session_ends_a_sequence_in_which_its_client_found_a_stop_string() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.001)) as engine:
        client, prompt = Client(engine), list(range(40))
        await client.start(s7=generation(prompt, n=2, max_tokens=2000))
        while len(client.tokens.get(7, [])) < 12:
            await client.read()
        await client.stop(7, 1, 5)
        await client.stop(7, 1, 5)
        await client.stop(8, 0, 5)
        reasons = {}
        while not reasons:
            reasons = {d.choice_index: d.finish_reason for d in (await client.read()).deltas if d.finish_reason}
        assert reasons == {1: common_pb2.FINISH_REASON_STOP}
        assert engine.worker.loop.load().running_sequences == 1
        await client.stop(7, 0, 6)
        await client.read_until(1)
        final = client.final[7]
        assert (final.choice_index, final.finish_reason) == (0, common_pb2.FINISH_REASON_STOP)
        assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (40, 11)
        assert engine.worker.loop.load().counters.generation_tokens == len(client.tokens[7]) < 4000
        await wait_free(engine)


async def test_session_sends_prompt_logprobs_before_what_follows() -> None:
    async with running_engine() as engine:
        client = Client(engine)
        prompt = list(range(30))
        await client.start(s1=generation(prompt, max_tokens=1, prompt_logprobs=1), s2=generation([1], max_tokens=20))
        await client.start(s3=generation(prompt, max_tokens=5, prompt_logprobs=0, n=2))
        logprobs: dict[int, int] = {}
        while len(client.final) < 3:
            for delta in (await client.read()).deltas:
                assert bool(delta.prompt_logprobs) == (delta.stream_id != 2 and delta.stream_id not in logprobs)
                logprobs[delta.stream_id] = logprobs.get(delta.stream_id, 0) + len(delta.prompt_logprobs)
        assert logprobs == {1: 29, 2: 0, 3: 29}
        assert client.tokens[1] == expected(prompt, 1)


async def test_a_session_that_is_not_read_is_ended() -> None:
    async with running_engine(num_gpu_blocks_override=64 * 129, max_num_seqs=64) as engine:
        ended = asyncio.Event()

        async def messages() -> AsyncIterator[engine_pb2.EngineServiceSessionRequest]:
            starts = [
                engine_pb2.SessionStart(stream_id=index, generation=generation([index])) for index in range(1, 65)
            ]
            yield engine_pb2.EngineServiceSessionRequest(starts=starts)
            await ended.wait()

        frames = EngineSession(engine.worker).frames(messages())
        await anext(frames)
        await wait_free(engine)
        assert engine.worker.loop.load().counters.generation_tokens < 64 * 2000
        with pytest.raises(Overloaded):
            await anext(frames)
        ended.set()


async def test_cancelling_generate_frees_blocks() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.005)) as engine:
        request = engine_pb2.EngineServiceGenerateRequest(generation=generation([1], max_tokens=1000))
        call = engine.stub.Generate(request, timeout=TIMEOUT)
        await call.read()
        call.cancel()
        await wait_free(engine)


async def test_abort_by_request_id() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.005)) as engine:
        task = asyncio.create_task(generate(engine, generation([1], max_tokens=1000, request_id="mine")))
        aborted = 0
        async with asyncio.timeout(TIMEOUT):
            while not aborted:
                await asyncio.sleep(0.01)
                answer = await engine.stub.Abort(engine_pb2.AbortRequest(request_ids=["mine", "no"]), timeout=TIMEOUT)
                aborted = answer.aborted
        assert (await task)[-1].finish_reason == common_pb2.FINISH_REASON_ABORT


async def test_deadlines_of_running_and_waiting_requests() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.01), max_num_seqs=1) as engine:
        client = Client(engine)
        await client.start(
            s1=generation([1], max_tokens=1000, timeout_ms=400), s2=generation([2], max_tokens=9, timeout_ms=100)
        )
        await client.read_until(2)
        for stream_id in (1, 2):
            assert isinstance(from_request_error(client.final[stream_id].error), DeadlineExceeded)
        assert client.tokens[2] == []
        error = await refusal(engine, generation([1], max_tokens=1000, timeout_ms=50))
        assert isinstance(error, DeadlineExceeded)
        await wait_free(engine)


async def test_a_full_queue_is_overload() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.02), max_num_seqs=1, max_waiting_requests=2) as engine:
        client = Client(engine)
        await client.start(**{f"s{index}": generation([index], max_tokens=100) for index in range(1, 9)})
        await client.read_until(4)  # one may be on its way from those that wait to those that run, and count as neither
        errors = [from_request_error(delta.error) for delta in client.final.values()]
        assert all(isinstance(error, Overloaded) for error in errors)
        client.call.cancel()
        await wait_free(engine)


async def test_a_hundred_streams_with_a_third_cancelled() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.002, verify=True), num_gpu_blocks_override=160) as engine:
        prompts = {index: list(range(index, index + 1 + index % 37)) for index in range(100)}

        async def one(index: int) -> list[int]:
            request = generation(prompts[index], max_tokens=40)
            call = engine.stub.Generate(engine_pb2.EngineServiceGenerateRequest(generation=request), timeout=TIMEOUT)
            tokens: list[int] = []
            async for response in call:
                tokens += response.delta.token_ids
                if index % 3 == 0 and len(tokens) > index % 11:
                    call.cancel()
                    break
            return tokens

        results = await asyncio.gather(*(one(index) for index in range(100)))
        for index, tokens in enumerate(results):
            assert tokens == expected(prompts[index], 40)[: len(tokens)]
            assert index % 3 == 0 or len(tokens) == 40
        await wait_free(engine)


async def test_a_failed_step_fails_its_requests_only() -> None:
    armed = threading.Event()

    def fail_when_armed(plan: StepPlan) -> None:
        if armed.is_set():
            armed.clear()
            raise ValueError("kernel")

    async with running_engine(FakeExecutor(on_step=fail_when_armed)) as engine:
        armed.set()
        error = await refusal(engine, generation([1], max_tokens=5))
        assert isinstance(error, Internal)
        assert error.reason == "ENGINE_FAULT"
        assert "kernel" not in error.message
        assert len(await generated(engine, generation([1], max_tokens=5))) == 5


async def test_a_dead_engine_ends_its_requests() -> None:
    def fail(plan: StepPlan) -> None:
        raise ValueError("kernel")

    async with running_engine(FakeExecutor(on_step=fail), max_num_seqs=1) as engine:
        client = Client(engine)
        await client.start(**{f"s{index}": generation([1], max_tokens=5) for index in range(1, 6)})
        await client.read_until(5)
        assert isinstance(await asyncio.wait_for(engine.worker.loop.died, TIMEOUT), Exception)
        assert (await refusal(engine, generation([1]))).reason == "ENGINE_FAULT"


async def test_an_engine_whose_executor_dies_while_nothing_runs_is_dead_at_once() -> None:
    class Mortal(FakeExecutor):
        wake: Callable[[], None]
        lost = False

        def wake_by(self, wake: Callable[[], None]) -> None:
            self.wake = wake

        def check_alive(self, asks: bool = False) -> None:
            if self.lost:
                raise ExecutorDead("rank 1 was killed")

    executor = Mortal()
    async with running_engine(executor) as engine:
        assert len(await generated(engine, generation([1], max_tokens=2))) == 2
        executor.lost = True
        executor.wake()
        assert "rank 1" in str(await asyncio.wait_for(engine.worker.loop.died, TIMEOUT))


async def test_not_loaded_means_unavailable() -> None:
    async with running_engine(load=False) as engine:
        assert (await refusal(engine, generation([1]))).reason == "LOADING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await engine.stub.GetModelInfo(engine_pb2.GetModelInfoRequest(), timeout=TIMEOUT)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        health = health_pb2_grpc.HealthStub(engine.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="quire.v1.EngineService"), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.005)) as engine:
        running = asyncio.create_task(generated(engine, generation([1], max_tokens=200)))
        while not engine.worker.loop.load().busy:
            await asyncio.sleep(0.005)
        draining = asyncio.create_task(engine.worker.loop.drain())
        await asyncio.sleep(0)
        assert (await refusal(engine, generation([1]))).reason == "DRAINING"
        assert len(await running) == 200
        await asyncio.wait_for(draining, TIMEOUT)


async def test_model_info_and_load() -> None:
    async with running_engine(block_size=16, max_num_seqs=8) as engine:
        info = (await engine.stub.GetModelInfo(engine_pb2.GetModelInfoRequest(), timeout=TIMEOUT)).model_info
        assert list(info.served_model_names) == ["fake"]
        assert (info.max_model_len, info.vocab_size, info.num_kv_blocks) == (2048, 1000, 4096)
        assert info.fingerprint == engine.worker.info.fingerprint != ""
        await generate(engine, generation(list(range(50)), max_tokens=4))
        load = (await engine.stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=TIMEOUT)).load
        assert load.counters.prompt_tokens == 50
        assert load.counters.generation_tokens == 4
        assert sum(load.counters.iteration_tokens.counts) == 4
        text = generate_latest(engine.registry).decode()
        assert "quire_engine_generation_tokens_total 4.0" in text
        assert 'quire_engine_model_execute_seconds_bucket{le="0.001"} 4.0' in text


class Deaf:
    """A sink that ignores everything."""

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        pass


async def test_embeddings_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_svc.core.loop.MAX_LIVE_CONTENT_BYTES", 100)
    embeds = PromptEmbeds("float32", 1, bytes(60))
    async with running_engine() as engine:
        loop, request = engine.worker.loop, GenerationRequest("r", [], prompt_embeds=embeds)
        key = loop.submit(request, Deaf())
        with pytest.raises(Overloaded, match="the limit is 100 bytes"):
            loop.submit(request, Deaf())
        loop.submit(GenerationRequest("other", [1, 2]), Deaf())
        loop.detach(key)
        loop.detach(loop.submit(request, Deaf()))
        loop.abort_requests(["other"])
        await wait_free(engine)
