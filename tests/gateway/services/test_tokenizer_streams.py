"""Calls of the tokenizer service that have several responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.services import tokenizer as tokenizer_module
from gateway.services.tokenizer import Tokenizer
from gateway.services.tokenizers import Tokenizers
from quire.errors import DeadlineExceeded, InvalidRequest, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.v1 import tokenizer_pb2
from quire.work_pool import WorkPool
from tests.support.gateway_stack import running_tokenizer
from tests.support.waiting import eventually
from tokenizer_svc.service import TokenizerServicer

FILE = bytes(2 * 2**20)


@dataclass
class Cutter:
    """The service side of SplitAudio.

    Attributes:
        count: pieces.
        outcomes: what each call raises; None for nothing.
        calls: number of calls so far.
        sent: pieces sent.
        pause: seconds before each piece.
        num_live: calls in progress.
    """

    count: int = 3
    outcomes: list[tuple[int, Exception]] = field(default_factory=list)
    calls: int = 0
    sent: int = 0
    pause: float = 0.0
    num_live: int = 0

    async def cut(
        self, request: tokenizer_pb2.SplitAudioRequest, context: Any
    ) -> AsyncIterator[tokenizer_pb2.SplitAudioResponse]:
        place, error = self.outcomes[self.calls] if self.calls < len(self.outcomes) else (-1, None)
        self.calls += 1
        self.num_live += 1
        try:
            for number in range(self.count):
                await asyncio.sleep(self.pause)
                if error and number == place:
                    raise error
                self.sent += 1
                yield tokenizer_pb2.SplitAudioResponse(
                    start_seconds=number * 30.1, seconds=30.1, file=request.file
                )  # fmt: skip
        finally:
            self.num_live -= 1


@pytest.fixture
def cutter(monkeypatch: pytest.MonkeyPatch) -> Cutter:
    found = Cutter()

    async def split(
        self: TokenizerServicer, request: tokenizer_pb2.SplitAudioRequest, context: Any
    ) -> AsyncIterator[tokenizer_pb2.SplitAudioResponse]:
        async for each in found.cut(request, context):
            yield each

    monkeypatch.setattr(TokenizerServicer, "SplitAudio", split)
    return found


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[Tokenizer, Tokenizers]]:
    async with running_tokenizer(folder) as service:
        replicas = Tokenizers(
            [f"127.0.0.1:{service.port}"], RpcSecurityOptions(), lambda frame: None, lambda replica, error: None
        )
        task = asyncio.create_task(replicas.run())
        yield Tokenizer(replicas, WorkPool("large requests", 1, 1)), replicas
        assert not any(replica.busy for replica in replicas.known)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pieces_come_in_order(cutter: Cutter, tokenizer_folder: Path) -> None:
    async with connected(tokenizer_folder) as (tokenizer, _):
        found = [piece async for piece in tokenizer.split_audio(FILE)]
        assert [piece.end_seconds for piece in found] == [30.1, 60.2, 90.3]
        assert all(piece.file == FILE for piece in found)


async def test_errors(cutter: Cutter, tokenizer_folder: Path) -> None:
    cutter.outcomes = [(1, InvalidRequest("The recording is broken.", parameter="file"))]
    async with connected(tokenizer_folder) as (tokenizer, _):
        pieces = tokenizer.split_audio(FILE)
        await anext(pieces)
        with pytest.raises(InvalidRequest, match="The recording is broken") as caught:
            await anext(pieces)
        assert caught.value.parameter == "file"


async def test_only_calls_without_pieces_are_repeated(cutter: Cutter, tokenizer_folder: Path) -> None:
    gone = Unavailable("It stops.")
    cutter.outcomes = [(0, gone), (0, gone), (2, gone)]
    async with connected(tokenizer_folder) as (tokenizer, _):
        pieces = tokenizer.split_audio(FILE)
        assert [(await anext(pieces)).end_seconds for _ in range(2)] == [30.1, 60.2]
        with pytest.raises(Unavailable, match="It stops"):
            await anext(pieces)
        assert cutter.calls == 3


async def test_a_deadline_for_all_pieces(
    cutter: Cutter, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "_SPLIT_SECONDS", 1.0)
    async with connected(tokenizer_folder) as (tokenizer, _):
        cutter.pause = 0.6
        with pytest.raises(DeadlineExceeded, match="did not answer within 1 s"):
            assert [piece async for piece in tokenizer.split_audio(FILE)]
        await eventually(lambda: cutter.num_live == 0, "the call goes on")


async def test_pieces_that_are_not_taken_are_not_sent(cutter: Cutter, tokenizer_folder: Path) -> None:
    cutter.count = 100
    async with connected(tokenizer_folder) as (tokenizer, _):
        pieces = tokenizer.split_audio(FILE)
        await anext(pieces)
        await asyncio.sleep(0.2)
        assert cutter.sent < 50  # a few megabytes are on their way
        await pieces.aclose()
        await eventually(lambda: cutter.num_live == 0, "the call goes on")
