"""Tokenizer replicas discovered by name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.main import main
from gateway.services.tokenizers import TokenizerReplica, Tokenizers
from quire.errors import DeadlineExceeded, StartupError
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from quire.options.server import RpcSecurityOptions
from quire.rpc import peers
from quire.v1 import tokenizer_pb2
from tests.support.gateway_stack import running_tokenizer
from tests.support.waiting import WAIT_SECONDS, eventually


class Names:
    """A resolver whose answers tests can change."""

    def __init__(self, *found: str) -> None:
        self.found: Sequence[str] = found

    async def __call__(self, host: str) -> Sequence[str]:
        assert host == "tokenizers"
        if not self.found:
            raise socket.gaierror("no such name")
        return self.found


@contextlib.asynccontextmanager
async def running(names: Names, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tokenizers]:
    monkeypatch.setattr(peers, "LOOK_UP_SECONDS", 0.02)
    replicas = Tokenizers(
        ["tokenizers:50052"], RpcSecurityOptions(), lambda frame: None, lambda replica, error: None, names
    )
    task = asyncio.create_task(replicas.run())
    yield replicas
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def known(replicas: Tokenizers) -> list[str]:
    return sorted(address for address, replica in replicas._replicas.by_address.items() if not replica.retired)


async def test_every_address_behind_a_name_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    async with running(names, monkeypatch) as replicas:
        await asyncio.sleep(0.1)
        assert known(replicas) == []
        names.found = ["127.0.0.2", "127.0.0.3", "::1"]
        await eventually(lambda: known(replicas) == ["127.0.0.2:50052", "127.0.0.3:50052"])
        busy = replicas._replicas.by_address["127.0.0.3:50052"]
        busy.live += 1
        names.found = ["127.0.0.2"]
        await eventually(lambda: known(replicas) == ["127.0.0.2:50052"])
        assert set(replicas._replicas.by_address) == {
            "127.0.0.2:50052",
            "127.0.0.3:50052",
        }  # its sequences may finish
        names.found = ["127.0.0.2", "127.0.0.3"]
        await eventually(lambda: len(known(replicas)) == 2)
        assert replicas._replicas.by_address["127.0.0.3:50052"] is busy
        names.found = []  # an empty answer changes nothing
        await asyncio.sleep(0.1)
        assert len(known(replicas)) == 2
        busy.live -= 1
        names.found = ["127.0.0.2"]
        await eventually(lambda: set(replicas._replicas.by_address) == {"127.0.0.2:50052"})
        assert len(replicas._replicas._running) == 1


async def test_those_that_stop_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Tokenizers([], RpcSecurityOptions(), lambda frame: None, lambda replica, error: None)
    assert replicas.pick() is None
    ups = [
        TokenizerReplica(f"127.0.0.1:{port}", "", RpcSecurityOptions(), lambda frame: None, lambda replica, error: None)
        for port in (1, 2, 3)
    ]
    monkeypatch.setattr(TokenizerReplica, "up", True)
    replicas._replicas.by_address = {replica.address: replica for replica in ups}
    first, second, third = ups
    first.live = 5
    assert replicas.pick() is second
    second.draining = True
    assert replicas.pick() is third
    third.retired = True
    assert replicas.pick() is first
    assert replicas.pick([first]) in (second, third)
    assert replicas.pick(ups) is first


async def test_a_call_that_takes_too_long_says_of_whom(monkeypatch: pytest.MonkeyPatch, tokenizer_folder: Path) -> None:
    async with running_tokenizer(tokenizer_folder) as server:
        address = f"127.0.0.1:{server.port}"
        replicas = Tokenizers([address], RpcSecurityOptions(), lambda frame: None, lambda replica, error: None)
        task = asyncio.create_task(replicas.run())
        await replicas.wait_up(WAIT_SECONDS)

        async def late(**_: object) -> None:
            await asyncio.sleep(5)

        monkeypatch.setattr(server.servicer._renderer, "render", late)
        request = tokenizer_pb2.RenderChatRequest(messages_json=b"[]")
        with pytest.raises(DeadlineExceeded, match=r"tokenizer service did not answer within 0\.2 s"):
            await replicas.call("RenderChat", request, seconds=0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_malformed_address() -> None:
    options = GatewayOptions(tokenizer_address=("127.0.0.1:50052", "tokenizer"))
    with pytest.raises(StartupError, match="--tokenizer-address 'tokenizer' is not host:port"):
        main(options, RpcSecurityOptions(), LogOptions())


async def test_a_name_is_looked_up_and_asked(tokenizer_folder: Path) -> None:
    async with running_tokenizer(tokenizer_folder) as server:
        addresses = [f"localhost:{server.port}"]
        replicas = Tokenizers(addresses, RpcSecurityOptions(), lambda frame: None, lambda replica, error: None)
        task = asyncio.create_task(replicas.run())
        answer = await replicas.call("Encode", tokenizer_pb2.EncodeRequest(texts=["ab"]))
        assert len(answer.sequences[0].token_ids) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
