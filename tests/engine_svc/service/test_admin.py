"""EngineAdminService over real sockets: operators' commands, and what they do to running requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from engine_svc.upkeep import StartProfile
from quire.errors import (
    DRAINING,
    PAUSED,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    QuireError,
    Unavailable,
)
from quire.options.model import ModelOptions
from quire.rpc.status import from_rpc_error
from quire.sleep import Leaving
from quire.v1 import admin_pb2, admin_pb2_grpc, common_pb2, engine_pb2
from tests.support.engine_client import TIMEOUT, expected, generate, generation, refusal
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan
from tests.support.waiting import eventually

ABORT, WAIT, KEEP = admin_pb2.LEAVING_ABORT, admin_pb2.LEAVING_WAIT, admin_pb2.LEAVING_KEEP
PROMPT = list(range(40))


async def ask(engine: RunningEngine, **command: Any) -> admin_pb2.AdminOutcome:
    """Sends a command twice, since repeating it must change nothing; returns the second answer's outcome."""
    stub = admin_pb2_grpc.EngineAdminServiceStub(engine.channel)
    request = admin_pb2.EngineAdminServiceAdministerRequest(command=admin_pb2.AdminCommand(**command))
    for _ in range(2):
        answer = await stub.Administer(request, timeout=TIMEOUT)
    outcome: admin_pb2.AdminOutcome = answer.outcome
    return outcome


async def refused(engine: RunningEngine, **command: Any) -> QuireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(engine, **command)
    return from_rpc_error(caught.value)


def slow_engine(**options: Any) -> Any:
    return running_engine(FakeExecutor(verify=True, step_seconds=0.002), enable_sleep_mode=True, **options)


def start(engine: RunningEngine, count: int) -> asyncio.Task[list[common_pb2.GenerationDelta]]:
    return asyncio.create_task(generate(engine, generation(PROMPT, max_tokens=count)))


def tokens(deltas: list[common_pb2.GenerationDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def runs(engine: RunningEngine) -> None:
    await eventually(lambda: engine.worker.loop.load().counters.generation_tokens > 5, "nothing runs")


@pytest.mark.parametrize("level", [None, 0, 1, 2])
async def test_streams_that_stay_go_on(level: int | None) -> None:
    async with slow_engine() as engine:
        running = start(engine, 100)
        await runs(engine)
        if level is None:
            status = (await ask(engine, pause=admin_pb2.Pause(leaving=KEEP))).status
        else:
            status = (await ask(engine, sleep=admin_pb2.Sleep(level=level, leaving=KEEP))).status
        assert status.is_paused
        assert (status.sleep_level if status.HasField("sleep_level") else None) == level
        assert list(status.asleep) == (["kv_cache", "weights"] if level else [])
        told = engine.worker.loop.load()
        error = await refusal(engine, generation(PROMPT, max_tokens=1))
        assert (type(error), error.reason) == (Unavailable, PAUSED)
        load = (await engine.stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=TIMEOUT)).load
        assert (load.status, load.busy, load.step) == (status, False, told.step)
        assert not running.done()
        if level is None:
            status = (await ask(engine, resume=admin_pb2.Resume())).status
        else:
            status = (await ask(engine, wake_up=admin_pb2.WakeUp())).status
        assert status == common_pb2.EngineStatus()
        assert tokens(await running) == expected(PROMPT, 100)


@pytest.mark.parametrize(("level", "content", "is_other"), [(2, b"new", True), (2, b"old", False), (1, b"new", False)])
async def test_weights_that_are_read_anew_have_their_own_fingerprint(
    tmp_path: Path, level: int, content: bytes, is_other: bool
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"old")
    async with running_engine(FakeExecutor(), ModelOptions(model=str(tmp_path)), enable_sleep_mode=True) as engine:
        before, version = engine.worker.info, engine.worker.load_now().adapters_version
        await ask(engine, sleep=admin_pb2.Sleep(level=level, leaving=KEEP))
        (tmp_path / "model.safetensors").write_bytes(content)
        await ask(engine, wake_up=admin_pb2.WakeUp())
        assert (engine.worker.info.fingerprint != before.fingerprint) is is_other
        assert (engine.worker.load_now().adapters_version != version) is is_other  # so that routers ask again


def weights_update(folder: Path, leaving: Any = KEEP, version: str = "") -> admin_pb2.UpdateWeights:
    return admin_pb2.UpdateWeights(model_path=str(folder), weight_version=version, leaving=leaving, wait_ms=20_000)


async def test_replaced_weights_have_their_own_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"new")
    async with slow_engine() as engine:
        running = start(engine, 200)
        await runs(engine)
        before, version = engine.worker.info, engine.worker.load_now().adapters_version
        told = await ask(engine, update_weights=weights_update(tmp_path, version="step 1"))
        assert told.status == common_pb2.EngineStatus(weight_version="step 1")
        after = engine.worker.info
        assert (after.fingerprint != before.fingerprint, after.model) == (True, str(tmp_path))
        assert engine.worker.load_now().adapters_version > version  # so that routers ask again
        found = tokens(await running)
        kept = next(count for count in range(200) if found[count] != expected(PROMPT, 200)[count])
        assert found[kept:] == expected_tokens(
            PROMPT + found[:kept], 200 - kept, 1000, sampling_plan(temperature=0.0), str(tmp_path)
        )
        again = admin_pb2.UpdateWeights(leaving=KEEP)
        assert (await ask(engine, update_weights=again)).status.weight_version == "step 1"
        assert engine.worker.info == after
        await ask(engine, update_weights=weights_update(tmp_path, version="step 2"))
        assert engine.worker.info.fingerprint not in (before.fingerprint, after.fingerprint)
        told = await ask(engine, update_weights=weights_update(tmp_path))
        assert told.status.weight_version == str(tmp_path)


@pytest.mark.parametrize(("leaving", "reason"), [(ABORT, "ABORT"), (WAIT, "LENGTH")])
async def test_those_that_do_not_see_new_weights(tmp_path: Path, leaving: Any, reason: str) -> None:
    async with slow_engine() as engine:
        running = start(engine, 100)
        await runs(engine)
        await ask(engine, update_weights=weights_update(tmp_path, leaving))
        deltas = await running
        assert deltas[-1].finish_reason == getattr(common_pb2, f"FINISH_REASON_{reason}")
        assert tokens(deltas) == expected(PROMPT, len(tokens(deltas)))


async def test_a_paused_engine_keeps_its_requests_for_new_weights(tmp_path: Path) -> None:
    async with slow_engine() as engine:
        running = start(engine, 100)
        await runs(engine)
        await ask(engine, pause=admin_pb2.Pause(leaving=KEEP))
        assert (await ask(engine, update_weights=weights_update(tmp_path, WAIT))).status.is_paused
        await ask(engine, resume=admin_pb2.Resume())
        assert len(tokens(await running)) == 100


async def test_weights_of_another_form_change_nothing(tmp_path: Path) -> None:
    executor = FakeExecutor()
    async with running_engine(executor) as engine:
        before, executor.why_not = engine.worker.load_now(), "hidden_size is 64, but 32"
        error = await refused(engine, update_weights=weights_update(tmp_path, version="2"))
        assert (type(error), error.parameter) == (InvalidRequest, "model_path")
        assert "hidden_size is 64, but 32. Nothing has changed" in error.message
        assert engine.worker.load_now().status == before.status


@pytest.mark.parametrize("name", ["nowhere", "a" * 300, "a\0b"])
async def test_weights_that_are_not_there_are_refused(tmp_path: Path, name: str) -> None:
    async with running_engine() as engine:
        error = await refused(engine, update_weights=weights_update(tmp_path / name))
        assert isinstance(error, InvalidRequest) and "which this worker does not find" in error.message


async def test_weights_that_vanish_while_requests_are_waited_for_change_nothing(tmp_path: Path) -> None:
    executor = FakeExecutor(verify=True, step_seconds=0.002)
    async with running_engine(executor) as engine:
        running = start(engine, 100)
        await runs(engine)
        updating = asyncio.create_task(refused(engine, update_weights=weights_update(tmp_path, WAIT)))
        await eventually(lambda: engine.worker.loop.refusal is not None, "new requests are not refused")
        executor.why_not = "it is gone"
        assert isinstance(await updating, InvalidRequest)
        assert tokens(await running) == expected(PROMPT, 100)
        assert (await ask(engine)).status == common_pb2.EngineStatus()


async def test_ranks_that_need_each_others_experts_keep_their_weights(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.spec = msgspec.structs.replace(executor.spec, lockstep_ranks=2)
    async with running_engine(executor) as engine:
        assert "share experts" in (await refused(engine, update_weights=weights_update(tmp_path))).message
        assert not executor.asked


async def test_those_that_do_not_stay_end_with_what_they_have() -> None:
    async with slow_engine() as engine:
        running = start(engine, 1000)
        await runs(engine)
        await ask(engine, sleep=admin_pb2.Sleep(level=1, leaving=ABORT))
        deltas = await running
        assert deltas[-1].finish_reason == common_pb2.FINISH_REASON_ABORT
        assert tokens(deltas) == expected(PROMPT, len(tokens(deltas)))
        await ask(engine, wake_up=admin_pb2.WakeUp(parts=["weights"]))
        assert isinstance(await refused(engine, resume=admin_pb2.Resume()), Conflict)
        assert (await refusal(engine, generation([1], max_tokens=1))).reason == PAUSED
        await ask(engine, wake_up=admin_pb2.WakeUp(parts=["kv_cache"]))
        assert tokens(await generate(engine, generation(PROMPT, max_tokens=5))) == expected(PROMPT, 5)


async def test_those_that_are_waited_for_end_before_it_is_paused() -> None:
    async with slow_engine() as engine:
        running = start(engine, 60)
        await runs(engine)
        pausing = asyncio.create_task(ask(engine, pause=admin_pb2.Pause(leaving=WAIT, wait_ms=20_000)))
        await eventually(lambda: engine.worker.loop.refusal is not None, "new requests are not refused")
        assert (await refusal(engine, generation([1], max_tokens=1))).reason == PAUSED
        assert (await pausing).status.is_paused
        assert tokens(await running) == expected(PROMPT, 60)


async def test_a_wait_that_is_too_long_changes_nothing() -> None:
    async with slow_engine() as engine:
        running = start(engine, 1000)
        await runs(engine)
        error = await refused(engine, pause=admin_pb2.Pause(leaving=WAIT, wait_ms=20))
        assert isinstance(error, DeadlineExceeded)
        assert "1 requests have not finished" in error.message
        assert tokens(await generate(engine, generation(PROMPT, max_tokens=2))) == expected(PROMPT, 2)
        await ask(engine, pause=admin_pb2.Pause(leaving=KEEP))
        error = await refused(engine, pause=admin_pb2.Pause(leaving=WAIT, wait_ms=20))
        assert isinstance(error, Conflict)
        assert (await ask(engine)).status.is_paused
        await ask(engine, abort=engine_pb2.AbortRequest(request_ids=["nobody"]))
        await ask(engine, pause=admin_pb2.Pause(leaving=ABORT))
        assert (await running)[-1].finish_reason == common_pb2.FINISH_REASON_ABORT


async def test_whoever_loses_patience_changes_nothing_either() -> None:
    async with slow_engine() as engine:
        running = start(engine, 1000)
        await runs(engine)
        stub = admin_pb2_grpc.EngineAdminServiceStub(engine.channel)
        command = admin_pb2.AdminCommand(pause=admin_pb2.Pause(leaving=WAIT, wait_ms=20_000))
        call = stub.Administer(admin_pb2.EngineAdminServiceAdministerRequest(command=command), timeout=TIMEOUT)
        await eventually(lambda: engine.worker.loop.refusal is not None, "new requests are not refused")
        call.cancel()
        await eventually(lambda: engine.worker.loop.refusal is None, "new requests are refused for good")
        assert tokens(await generate(engine, generation(PROMPT, max_tokens=2))) == expected(PROMPT, 2)
        running.cancel()


async def test_a_wait_that_ends_after_another_pause_leaves_it_paused() -> None:
    async with slow_engine() as engine:
        running = start(engine, 1000)
        await runs(engine)
        pausing = asyncio.create_task(refused(engine, pause=admin_pb2.Pause(leaving=WAIT, wait_ms=500)))
        await eventually(lambda: engine.worker.loop.refusal is not None, "new requests are not refused")
        await ask(engine, pause=admin_pb2.Pause(leaving=KEEP))
        assert isinstance(await pausing, DeadlineExceeded)
        assert (await refusal(engine, generation([1], max_tokens=1))).reason == PAUSED
        await ask(engine, resume=admin_pb2.Resume())
        assert tokens(await generate(engine, generation(PROMPT, max_tokens=2))) == expected(PROMPT, 2)
        running.cancel()


async def test_a_pause_right_behind_a_resume_counts() -> None:
    async with slow_engine() as engine:
        await ask(engine, pause=admin_pb2.Pause(leaving=KEEP))
        administration = engine.worker.administration
        await asyncio.gather(administration.resume(), administration.pause(Leaving.KEEP, 0.0, clears_cache=False))
        assert administration.status.is_paused
        assert (await refusal(engine, generation([1], max_tokens=1))).reason == PAUSED


async def test_a_pause_that_is_waited_for_can_be_taken_back() -> None:
    async with slow_engine() as engine:
        running = start(engine, 1000)
        await runs(engine)
        pausing = asyncio.create_task(refused(engine, pause=admin_pb2.Pause(leaving=WAIT, wait_ms=20_000)))
        await eventually(lambda: engine.worker.loop.refusal is not None, "new requests are not refused")
        await ask(engine, resume=admin_pb2.Resume())
        assert tokens(await generate(engine, generation(PROMPT, max_tokens=2))) == expected(PROMPT, 2)
        assert "resumed" in (await pausing).message  # although a request still runs
        assert not running.done()
        running.cancel()


async def test_a_drained_worker_finishes_what_it_has() -> None:
    async with slow_engine() as engine:
        running = start(engine, 40)
        await runs(engine)
        assert (await ask(engine, drain=admin_pb2.Drain())).status.is_draining
        error = await refusal(engine, generation(PROMPT, max_tokens=1))
        assert (type(error), error.reason) == (Unavailable, DRAINING)
        assert tokens(await running) == expected(PROMPT, 40)
        await ask(engine, pause=admin_pb2.Pause(leaving=KEEP))
        await ask(engine, resume=admin_pb2.Resume())
        assert (await refusal(engine, generation(PROMPT, max_tokens=1))).reason == DRAINING
        assert (await ask(engine, undrain=admin_pb2.Undrain())).status == common_pb2.EngineStatus()
        assert tokens(await generate(engine, generation(PROMPT, max_tokens=3))) == expected(PROMPT, 3)


@pytest.mark.parametrize("preempts", [False, True])
async def test_a_reset_prefix_cache_has_nothing_for_later_requests(preempts: bool) -> None:
    async with slow_engine() as engine:
        await generate(engine, generation(PROMPT, max_tokens=1))
        reset = admin_pb2.ResetPrefixCache(preempts_running=preempts)
        await ask(engine, reset_prefix_cache=reset)
        running = start(engine, 60)
        await eventually(lambda: engine.worker.loop.load().counters.generation_tokens > 5, "nothing runs")
        await ask(engine, reset_prefix_cache=reset)
        assert tokens(await running) == expected(PROMPT, 60)
        _, contents = await engine.worker.loop.cache_contents()
        assert any(contents.hashes.values()) == preempts  # if preempted, it was recomputed after the reset
        assert engine.worker.loop.load().used_kv_blocks == 0


async def test_profiles_go_where_the_options_say(tmp_path: Path) -> None:
    executor = FakeExecutor()
    config = {"torch_profiler_dir": str(tmp_path / "traces"), "max_iterations": 7}
    async with running_engine(executor, profiler_config=config) as engine:
        stub = admin_pb2_grpc.EngineAdminServiceStub(engine.channel)
        command = admin_pb2.AdminCommand(start_profile=admin_pb2.StartProfile())
        request = admin_pb2.EngineAdminServiceAdministerRequest(command=command)
        assert (await stub.Administer(request, timeout=TIMEOUT)).outcome.status.is_profiling
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Administer(request, timeout=TIMEOUT)
        assert isinstance(from_rpc_error(caught.value), Conflict)
        (asked,) = executor.asked
        assert isinstance(asked, StartProfile)
        assert (asked.folder, asked.most_steps) == (str(tmp_path / "traces"), 7)
        outcome = await ask(engine, stop_profile=admin_pb2.StopProfile())
        assert (list(outcome.files), outcome.status.is_profiling) == (["fake.json"], False)


async def test_what_the_engine_was_not_started_for_is_refused_by_the_flag() -> None:
    async with running_engine(FakeExecutor()) as engine:
        for command, flag in (
            ({"start_profile": admin_pb2.StartProfile()}, "--profiler-config"),
            ({"sleep": admin_pb2.Sleep(level=1, leaving=KEEP)}, "--enable-sleep-mode"),
        ):
            error = await refused(engine, **command)
            assert isinstance(error, FailedPrecondition)
            assert flag in error.message
        assert (await ask(engine, sleep=admin_pb2.Sleep(level=0, leaving=KEEP))).status.is_paused


@pytest.mark.parametrize(
    ("command", "parameter"),
    [
        ({"sleep": admin_pb2.Sleep(level=3, leaving=KEEP)}, "level"),
        ({"sleep": admin_pb2.Sleep(level=1)}, "mode"),
        ({"pause": admin_pb2.Pause()}, "mode"),
        ({"wake_up": admin_pb2.WakeUp(parts=["everything"])}, "tags"),
    ],
)
async def test_what_there_is_not_is_named(command: Any, parameter: str) -> None:
    async with slow_engine() as engine:
        error = await refused(engine, **command)
        assert isinstance(error, InvalidRequest)
        assert error.parameter == parameter
        assert (await ask(engine)).status == common_pb2.EngineStatus()


async def test_an_engine_that_loads_says_so() -> None:
    async with running_engine(FakeExecutor(), load=False) as engine:
        assert isinstance(await refused(engine, drain=admin_pb2.Drain()), Unavailable)
