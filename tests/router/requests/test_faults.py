"""Workers that die, freeze, drain, restart and refuse."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

import grpc
import pytest

from quire.errors import Internal, InvalidRequest, Unavailable
from quire.v1 import router_pb2, router_pb2_grpc
from router.workers.state import State
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.engine_process import EngineProcess, engine_process, free_port
from tests.support.fake_engine import FakeEngine, FakeOptions, expected_tokens
from tests.support.router_client import GatewaySession, generation
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.slow

READY = router_pb2.WORKER_STATE_READY


async def start_where(session: GatewaySession, running: Running, address: str, numbers: range) -> list[int]:
    """Starts endless requests; returns those that run on the worker with this address."""
    for number in numbers:
        await (await session.start(number, generation([number]))).wait_tokens()
    return numbers_on(running, address)


def numbers_on(running: Running, address: str) -> list[int]:
    """Numbers of the only session's requests that are on a worker."""
    streams = [item for caller in running.router.dispatcher.sessions for item in caller.streams.items()]
    return [n for n, stream in streams if stream.worker and stream.worker.address == address]


async def test_requests_of_a_killed_worker_go_on_elsewhere_and_it_comes_back(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """No token is lost or duplicated, with one or several choices, with and without log-probabilities."""
    healthy = await start_engine(step_seconds=0.02)
    port = free_port()
    with engine_process(port, "--step-ms", "20") as victim:
        running = await start_router(healthy.address, victim.address, routing_policy="round_robin")
        async with running.client.session() as session:
            requests = [generation([number], 60, n=1 + number % 3) for number in range(12)]
            for request in requests[::2]:
                request.sampling.logprobs = 2
            outputs = [await session.start(number, request) for number, request in enumerate(requests)]
            for output in outputs:
                await output.wait_tokens()
            hit = numbers_on(running, victim.address)
            assert len(hit) == 6
            victim.kill()
            for number, request in enumerate(requests):
                output = await session.outputs[number].wait_ended()
                assert output.error is None
                for choice in range(request.sampling.n):
                    assert output.tokens[choice] == expected_tokens([number], 60, choice)
                    assert output.scored[choice] == (60 if request.sampling.HasField("logprobs") else 0)
                assert output.finals == 1
                assert output.usage.completion_tokens == 60 * request.sampling.n
            assert (await running.client.workers())[victim.address].state == router_pb2.WORKER_STATE_UNREACHABLE
            assert running.router.metrics.get_sample_value("quire_router_migrations_total") == 6
            with engine_process(port) as reborn:
                await running.client.wait_ready(reborn.address)
                assert len(await start_where(session, running, reborn.address, range(20, 28))) > 0


async def test_the_only_worker_dies_and_its_requests_wait_for_it(start_router: StartRouter) -> None:
    port = free_port()
    with engine_process(port, "--step-ms", "20") as first:
        running = await start_router(first.address)
        async with running.client.session() as session:
            outputs = [await session.start(number, generation([number], 40)) for number in range(8)]
            for output in outputs:
                await output.wait_tokens()
            first.kill()
            await eventually(lambda: running.router.dispatcher.waiting.waiting == 8)
            with engine_process(port, "--step-ms", "20"):
                for number, output in enumerate(outputs):
                    await output.wait_ended()
                    assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 40))


async def test_of_those_that_move_together_the_shortest_go_first(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    lengths = [300, 10, 200, 30, 100, 250]
    with engine_process(free_port(), "--silent") as victim:
        running = await start_router(victim.address)
        async with running.client.session() as session:
            for number, length in enumerate(lengths):
                await session.start(number, generation([1] * length, 5))
            await eventually(lambda: len(running.router.table) == len(lengths))
            rescue = await start_engine()
            running.router.registry.announce("test", [rescue.address])
            await running.client.wait_ready(rescue.address)
            victim.kill()
            for number in range(len(lengths)):
                await session.outputs[number].wait_ended()
    assert [len(request.prompt_token_ids) for request in rescue.record.started] == sorted(lengths)


async def test_requests_without_a_token_go_elsewhere_too(start_engine: StartEngine, start_router: StartRouter) -> None:
    with engine_process(free_port(), "--silent") as victim:
        running = await start_router(victim.address)
        async with running.client.session() as session:
            for number in range(8):
                await session.start(number, generation([number], 5))
            await eventually(lambda: len(running.router.table) == 8)
            rescue = await start_engine()
            running.router.registry.announce("test", [rescue.address])
            await running.client.wait_ready(rescue.address)
            victim.kill()
            outputs = [await session.outputs[number].wait_ended() for number in range(8)]
    for number, output in enumerate(outputs):
        assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 5))
        assert output.finals == 1


async def test_a_request_moves_to_a_worker_of_the_same_make(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Other workers of the model, whose fingerprint differs, would continue with other tokens."""
    alike, different = await start_engine(step_seconds=0.02), await start_engine(fingerprint="other")
    with engine_process(free_port(), "--step-ms", "20") as victim:
        running = await start_router(victim.address)
        async with running.client.session() as session:
            outputs = [await session.start(number, generation([number], 40)) for number in range(6)]
            for output in outputs:
                await output.wait_tokens()
            running.router.registry.announce("test", [alike.address, different.address])
            await running.client.wait_ready(alike.address, different.address)
            victim.kill()
            for output in outputs:
                assert (await output.wait_ended()).error is None
    assert len(alike.record.started) == 6
    assert not different.record.started


def on_which(running: Running, *engines: EngineProcess) -> EngineProcess | None:
    """The worker that has the only session's only request."""
    for engine in engines:
        if numbers_on(running, engine.address):
            return engine
    return None


async def test_a_request_that_crashes_workers_is_given_up_and_kept_out(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Only for its tenant, whatever the seed; other tenants may send the same request."""
    with engine_process(free_port(), "--silent") as first, engine_process(free_port(), "--silent") as second:
        running = await start_router(first.address, second.address)
        async with running.client.session() as session:
            output = await session.start(1, generation([666], 5, tenant="wicked"))
            for _ in range(2):
                await eventually(lambda: on_which(running, first, second))
                struck = on_which(running, first, second)
                assert struck is not None
                struck.kill()
                await eventually(lambda struck=struck: not numbers_on(running, struck.address))
            assert isinstance((await output.wait_ended()).error, Internal)
            rescue = await start_engine()
            running.router.registry.announce("test", [rescue.address])
            await running.client.wait_ready(rescue.address)
            again = generation([666], 5, tenant="wicked", request_id="again", timeout_ms=5000)
            again.sampling.seed = 7
            refused = (await (await session.start(2, again)).wait_ended()).error
            assert refused is not None
            assert refused.reason == "ENGINE_FAULT"
            for number, other in enumerate(
                (generation([667], 5, tenant="wicked"), generation([666], 6, tenant="wicked"),
                 generation([666], 5, tenant="good"), generation([666], 5))
            ):  # fmt: skip
                assert (await (await session.start(3 + number, other)).wait_ended()).error is None


async def test_a_request_that_crashes_the_only_worker_again_and_again_is_given_up(start_router: StartRouter) -> None:
    port = free_port()
    running = await start_router()
    async with running.client.session() as session:
        for number in range(2):
            with engine_process(port, "--silent") as victim:
                running.router.registry.announce("test", [victim.address])
                await running.client.wait_ready(victim.address)
                output = session.outputs[1] if number else await session.start(1, generation([666], 5))
                await eventually(lambda victim=victim: on_which(running, victim))
            await eventually(lambda victim=victim: not numbers_on(running, victim.address))
        error = (await output.wait_ended()).error
    assert error is not None
    assert error.reason == "ENGINE_FAULT"


async def test_a_freeze_is_no_fault_of_what_the_worker_had_begun(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """After two freezes in a row the request is served, and served again when it is sent once more."""
    with engine_process(free_port(), "--silent") as first, engine_process(free_port(), "--silent") as second:
        running = await start_router(first.address, second.address)
        async with running.client.session() as session:
            output = await session.start(1, generation([666], 5, tenant="unlucky"))
            for _ in range(2):
                await eventually(lambda: on_which(running, first, second))
                struck = on_which(running, first, second)
                assert struck is not None
                struck.signal(signal.SIGSTOP)
                await eventually(lambda struck=struck: not numbers_on(running, struck.address))
            rescue = await start_engine()
            running.router.registry.announce("--workers", [rescue.address])
            assert (await output.wait_ended()).error is None
            for process in (first, second):
                process.signal(signal.SIGCONT)
            again = await (await session.start(2, generation([666], 5, tenant="unlucky"))).wait_ended()
            assert again.error is None


async def test_a_worker_that_refuses_is_passed_over(start_engine: StartEngine, start_router: StartRouter) -> None:
    sick = Unavailable("This worker is draining.")
    engines = [await start_engine(start_error=sick), await start_engine(start_error=sick)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 5))).wait_ended()
        assert isinstance(output.error, Unavailable)
        engines[1].options = FakeOptions()
        for number in range(2, 8):
            output = await (await session.start(number, generation([number], 5))).wait_ended()
            assert output.error is None
            assert output.tokens[0] == expected_tokens([number], 5)


async def test_the_only_worker_refuses_for_a_moment(start_engine: StartEngine, start_router: StartRouter) -> None:
    """The request must not use up its attempts on a worker that refuses because it drains before its health says so."""
    engine = await start_engine(start_error=Unavailable("This worker is draining."))
    running = await start_router(engine.address)
    async with running.client.session() as session:
        output = await session.start(1, generation([1], 5))
        await eventually(lambda: running.router.dispatcher.waiting.waiting)
        engine.options = FakeOptions()
        assert (await output.wait_ended()).error is None


async def test_refusals_do_not_multiply_beyond_the_retry_budget(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    sick = await start_engine(silent=True)
    running = await start_router(sick.address)
    async with running.client.session() as session:
        outputs = [await session.start(number, generation([number], 5)) for number in range(8)]
        await eventually(lambda: len(sick.live) == 8)
        rescue = await start_engine(silent=True)
        running.router.registry.announce("test", [rescue.address])
        await running.client.wait_ready(rescue.address)
        sick.fail_all(Unavailable("This worker is draining."))
        await eventually(lambda: len(rescue.live) == 3)  # the retry budget of eight requests
        rescue.options = FakeOptions()
        failed = [output for output in outputs if (await output.wait_ended()).error]
    assert len(failed) == 5
    told = running.router.metrics.get_sample_value
    assert [told("quire_router_retries_total", {"result": each}) for each in ("retried", "over_budget")] == [3, 5]


async def test_other_errors_are_not_retried(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(start_error=InvalidRequest("No.", parameter="top_p")) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 5))).wait_ended()
        assert isinstance(output.error, InvalidRequest)
        assert output.error.parameter == "top_p"


async def test_a_frozen_worker_gets_nothing_new_and_its_requests_go_on_elsewhere(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    healthy = await start_engine(step_seconds=0.02)
    with engine_process(free_port(), "--step-ms", "20") as frozen:
        running = await start_router(healthy.address, frozen.address, routing_policy="round_robin")
        async with running.client.session() as session:
            outputs = [await session.start(number, generation([number], 150)) for number in range(4)]
            for output in outputs:
                await output.wait_tokens()
            assert len(numbers_on(running, frozen.address)) == 2
            frozen.signal(signal.SIGSTOP)
            worker = await running.client.wait_state(frozen.address, router_pb2.WORKER_STATE_UNREACHABLE)
            assert worker.reason
            for number in range(10, 15):
                await (await session.start(number, generation([number], 3))).wait_ended()
            await eventually(lambda: not numbers_on(running, frozen.address))
            frozen.signal(signal.SIGCONT)  # its late output for the old requests is ignored
            await running.client.wait_ready(frozen.address)
            for number in range(4):
                output = await session.outputs[number].wait_ended()
                assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 150))
                assert output.finals == 1
            known = next(each for each in running.router.registry.workers if each.address == frozen.address)
            await eventually(lambda: known.load.last and not known.load.last.running_sequences, "it lets them go")


async def test_a_wedged_worker_gets_nothing_new_and_its_requests_go_on_elsewhere(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """It sends heartbeats but completes no step."""
    usual = {"step_seconds": 0.02, "max_num_batched_tokens": 256}
    healthy, wedged = await start_engine(**usual), await start_engine(**usual)
    running = await start_router(healthy.address, wedged.address, routing_policy="round_robin")
    async with running.client.session() as session:
        outputs = [await session.start(number, generation([number], 80)) for number in range(4)]
        for output in outputs:
            await output.wait_tokens()
        wedged.options = FakeOptions(wedged=True, max_num_batched_tokens=256)
        worker = await running.client.wait_state(wedged.address, router_pb2.WORKER_STATE_UNREACHABLE)
        assert "step" in worker.reason
        for number in range(4):
            output = await session.outputs[number].wait_ended()
            assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 80))
        assert not wedged.live


async def test_a_draining_worker_finishes_what_it_has(start_engine: StartEngine, start_router: StartRouter) -> None:
    healthy = await start_engine()
    with engine_process(free_port(), "--step-ms", "20") as leaving:
        running = await start_router(healthy.address, leaving.address)
        async with running.client.session() as session:
            outputs = [await session.start(number, generation([number], 60)) for number in range(6)]
            for output in outputs:
                await output.wait_tokens()
            leaving.signal(signal.SIGTERM)
            worker = await running.client.wait_state(leaving.address, router_pb2.WORKER_STATE_DRAINING)
            assert "NOT_SERVING" in worker.reason
            for number in range(10, 16):
                await (await session.start(number, generation([number], 3))).wait_ended()
            for number in (*range(6), *range(10, 16)):
                output = await session.outputs[number].wait_ended()
                assert output.error is None
                assert output.tokens[0] == expected_tokens([number], 60 if number < 6 else 3)
        assert leaving.wait_exit() == 0


async def test_health_that_comes_and_goes(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address, max_absence_seconds=0)
    assert await running.client.generate(generation([1], 1)) == expected_tokens([1], 1)
    await engine.rpc.set_serving(False)
    await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_DRAINING)
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 5))).wait_ended()
        assert isinstance(output.error, Unavailable)
        assert engine.address in output.error.message
    await engine.rpc.set_serving(True)
    await running.client.wait_ready(engine.address)


async def test_a_worker_that_still_loads_is_told_in_one_line(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """A second line says when it is ready; sessions that it refuses before then are not logged as losses."""
    caplog.set_level(logging.INFO)
    engine = FakeEngine()
    await engine.rpc.start()  # listens, NOT_SERVING
    running = await start_router()
    running.router.registry.announce("test", [engine.address])
    worker = await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_STARTING)
    await eventually(lambda: "is starting: it is loading the model" in caplog.text)
    assert not worker.HasField("model_info")
    assert not engine.record.metadata  # no call was made to it
    await engine.rpc.set_serving(True)
    await running.client.wait_ready(engine.address)
    await eventually(lambda: f"worker {engine.address} is ready" in caplog.text)
    assert caplog.text.count("is loading the model") == 1
    assert "lost" not in caplog.text
    assert "unreachable" not in caplog.text
    await engine.close()


async def test_a_worker_that_dies_while_it_loads_is_told(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = FakeEngine()
    await engine.rpc.start()
    running = await start_router()
    running.router.registry.announce("test", [engine.address])
    await eventually(lambda: "it is loading the model" in caplog.text)
    await engine.close()
    await eventually(lambda: "is starting: " in caplog.text.partition("it is loading the model")[2])
    assert not next(iter(running.router.registry.workers)).condition.coming


async def test_a_restarted_worker_may_serve_another_model(start_router: StartRouter) -> None:
    port = free_port()
    with engine_process(port, "--models", "old") as first:
        running = await start_router(first.address)
        first.kill()
        await running.client.wait_state(first.address, router_pb2.WORKER_STATE_UNREACHABLE)
    with engine_process(port, "--models", "new") as second:
        await running.client.wait_ready(second.address)
        worker = (await running.client.workers())[second.address]
        assert list(worker.model_info.served_model_names) == ["new"]


async def test_a_router_that_drains_finishes_and_takes_nothing_new(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    running = await start_router((await start_engine(step_seconds=0.02)).address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1], 40))).wait_tokens()
        draining = asyncio.create_task(running.router.dispatcher.drain())
        await asyncio.sleep(0)
        refused = await (await session.start(2, generation([2], 1))).wait_ended()
        assert isinstance(refused.error, Unavailable)
        assert not draining.done()
        assert (await session.outputs[1].wait_ended()).tokens[0] == expected_tokens([1], 40)
        await asyncio.wait_for(draining, WAIT_SECONDS)


def deaf_channel(port: int) -> grpc.aio.Channel:
    """gRPC reads little ahead of its caller, so that the other side notices unread data sooner."""
    small = (("grpc.http2.lookahead_bytes", 65535), ("grpc.http2.bdp_probe", 0))
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=small)


@pytest.mark.parametrize("reads", [True, False])
async def test_a_gateway_that_does_not_read_is_bounded(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """With a bound of 20,000 deltas, a gateway that leaves more unread loses its session, without affecting others."""
    monkeypatch.setattr("quire.rpc.session.MAX_PENDING_ITEMS", 20_000)
    engine = await start_engine(step_seconds=0.02, max_num_seqs=4096)
    running = await start_router(engine.address)
    async with running.client.session() as other, deaf_channel(running.router.server.port) as channel:
        call = router_pb2_grpc.RouterServiceStub(channel).Session()
        frame = router_pb2.RouterServiceSessionRequest()
        for number in range(20):
            frame.starts.add(stream_id=number, generation=generation([number], n=128))
        await call.write(frame)
        await eventually(lambda: len(running.router.table) == 20)
        if reads:
            for _ in range(50):
                assert await call.read()
            assert len(running.router.table) == 20
        else:
            await eventually(lambda: not len(running.router.table), "the requests of the deaf gateway")
            output = await (await other.start(1, generation([1], 5))).wait_ended()
            assert output.tokens[0] == expected_tokens([1], 5)
        call.cancel()


async def test_a_worker_that_loads_for_long_is_ready_as_soon_as_it_has(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    loading, other = await start_engine(), await start_engine()
    router = await start_router(loading.address, other.address)
    worker = next(worker for worker in router.router.registry.workers if worker.address == loading.address)
    for _ in range(10):  # as when its sessions end while it loads
        router.router.dispatcher.on_lost(worker, Unavailable("still loading"))
    assert worker.condition.state is State.READY


async def test_a_worker_is_not_blamed_for_what_it_did_before_its_restart(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.workers.load._STALL_SECONDS", 0.05)
    monkeypatch.setattr("router.workers.load._STALL_STEPS", 0)
    port = free_port()
    with engine_process(port) as first:
        running = await start_router(first.address)
        (worker,) = running.router.registry.workers
        async with running.client.session() as session:
            await session.start(1, generation([1]))
            await eventually(lambda: worker.load.last and worker.load.last.busy)
            first.kill()
            await eventually(lambda: not running.router.table.on_worker(worker))
            await session.abort(1)
            await eventually(lambda: worker.load.stalled(time.monotonic(), 0) > 10)
            given_up: list[bool] = []
            monkeypatch.setattr(worker._link, "give_up", lambda: given_up.append(worker._link.connected))
            with engine_process(port) as second:
                await running.client.wait_ready(second.address)
            assert not any(given_up)
