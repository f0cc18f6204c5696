"""What a router records of its requests (`--record-requests`)."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from quire.errors import StartupError
from quire.v1 import common_pb2
from router.requests import recorder as recorder_module
from router.requests.recorder import RecordedRequest, RequestRecorder
from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_pooling import EMBEDDER
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS


def lines(path: Path) -> list[RecordedRequest]:
    return [msgspec.json.decode(line, type=RecordedRequest) for line in path.read_bytes().splitlines()]


def record(recorder: RequestRecorder, *keys: int, **fields: Any) -> None:
    request = common_pb2.Generation(prompt_block_keys=keys, prompt_block_size=16, **fields)
    recorder.record(request, "finished", model="m", prompt_tokens=40, seconds=1.5, output_tokens=3)


async def test_a_router_records_what_has_ended(
    tmp_path: Path, start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address, record_requests=str(tmp_path / "requests"))
    asked = generation(list(range(40)), 3)
    asked.session_id, asked.tenant, asked.prompt_block_size = "talk", "acme", 16
    asked.prompt_block_keys.extend([1, 2])
    await running.client.generate(asked)
    asked.model = "unknown"
    with pytest.raises(Exception, match="unknown"):
        await running.client.generate(asked)
    recorder = running.router.core.recorder
    assert recorder is not None
    recorder.close()
    finished, refused = lines(tmp_path / "requests")
    assert (finished.outcome, finished.prompt_tokens, finished.output_tokens, finished.attempts) == (
        "finished", 40, 3, 1,
    )  # fmt: skip
    assert finished.seconds > 0
    assert (refused.outcome, refused.model, refused.output_tokens) == ("refused", "unknown", 0)
    assert refused.time >= finished.time
    assert (finished.tenant, finished.session) == (refused.tenant, refused.session)
    assert finished.block_keys == refused.block_keys
    text = (tmp_path / "requests").read_text()
    assert "talk" not in text and "acme" not in text


async def test_requests_for_pooling_are_recorded_too(
    tmp_path: Path, start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(pooling=EMBEDDER)
    running = await start_router(engine.address, record_requests=str(tmp_path / "requests"))
    asked = common_pb2.PoolRequest(model="fake", tenant="acme", priority=3)
    for ids in ([5, 6], [7]):
        asked.inputs.add(token_ids=ids)
    await running.client.stub.Pool(asked, timeout=WAIT_SECONDS)
    asked.tenant = "t" * 513
    with pytest.raises(grpc.aio.AioRpcError):
        await running.client.stub.Pool(asked, timeout=WAIT_SECONDS)
    recorder = running.router.core.recorder
    assert recorder is not None
    recorder.close()
    finished, refused = lines(tmp_path / "requests")
    assert (finished.runner, finished.outcome, finished.model) == ("pooling", "finished", "fake")
    assert (finished.prompt_tokens, finished.sequences, finished.attempts, finished.priority) == (3, 2, 1, 3)
    assert finished.seconds > 0 and len(finished.tenant) == 16
    assert (refused.runner, refused.outcome, refused.seconds) == ("pooling", "refused", 0)


def test_only_one_recording_compares_with_itself(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recorder = RequestRecorder(tmp_path / name)
        record(recorder, 1, 2**64 - 1, session_id="a")
        record(recorder, 1, 7, session_id="b")
        recorder.close()
    (first, second), (other, _) = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert first.block_keys[0] == second.block_keys[0] != other.block_keys[0]
    assert len({*first.block_keys, *second.block_keys, 1, 7}) == 5
    assert len({first.session, second.session, other.session}) == 3
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


def test_two_files_are_the_most(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.write_text("of before\n")
    recorder = RequestRecorder(path, most_bytes=500)
    assert (tmp_path / "requests.1").read_text() == "of before\n"
    for _ in range(20):
        record(recorder, 1, 2)
    recorder.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["requests", "requests.1"]
    assert 500 <= (tmp_path / "requests.1").stat().st_size < 1000
    assert len(lines(path)) < 20


def test_what_the_disk_refuses_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode = msgspec.json.encode

    def refuse(request: RecordedRequest) -> bytes:
        if request.priority:
            raise OSError(errno.ENOSPC, "No space left on device")
        return encode(request)

    monkeypatch.setattr(recorder_module.msgspec.json, "encode", refuse)
    recorder = RequestRecorder(tmp_path / "requests")
    for priority in (0, 1, 1, 0):
        record(recorder, 1, priority=priority)
    recorder.close()
    assert len(lines(tmp_path / "requests")) == 2
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1 and "No space left" in told[0]


def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--record-requests \S*missing/requests cannot be written: No such file"):
        RequestRecorder(tmp_path / "missing" / "requests")
