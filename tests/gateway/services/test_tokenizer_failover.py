"""Text whose session is lost continues at another tokenizer replica, or at the same one once it is back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.pipeline import Pipeline
from gateway.services import texts, tokenizers
from tests.support.fake_router import FakeRouter
from tests.support.gateway_stack import Gateway, gateway_before, save_tokenizer
from tests.support.stream_reader import Reader
from tests.support.tokenizer_process import TokenizerProcess
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

KINDS = 7
COMPLETION = {"prompt": "A", "max_tokens": 400, "return_token_ids": True, "stream_options": {"include_usage": True}}
BEGINNING = "Größe 🚀🎉 "
TEXT = f"{BEGINNING}of it: " + "one two three, " * 8 + "and END here. "
WITHIN = len(BEGINNING.encode()) + 1  # a token is a byte
Result = tuple[dict[int, dict[str, Any]], dict[str, Any] | None]


@dataclass
class Stack:
    """A gateway in front of a fake router and real tokenizer processes."""

    gateway: Gateway
    router: FakeRouter
    tokenizers: list[TokenizerProcess]

    @property
    def pipeline(self) -> Pipeline:
        return self.gateway.context.pipeline

    @property
    def moved(self) -> int:
        return self.gateway.context.statistics.texts_moved

    async def spell(self, text: str) -> list[int]:
        return list((await self.gateway.post("/tokenize", {"prompt": text})).json()["tokens"])

    def owner(self) -> TokenizerProcess:
        """The tokenizer that has the most live sequences."""
        replicas = self.pipeline.texts.replicas.known
        address = max(replicas, key=lambda replica: replica.live).address
        return next(tokenizer for tokenizer in self.tokenizers if tokenizer.address == address)

    async def hold(self, bodies: list[dict[str, Any]], cuts: list[int]) -> list[Reader]:
        """Starts one stream of each body for each cut, and waits until its client has received that many tokens."""
        readers: list[Reader] = []
        for cut in cuts:
            self.router.state.hold = cut
            begun = [Reader(self.gateway, "/v1/completions", body) for body in bodies]
            await eventually(lambda new=begun: all(reader.begun for reader in new), "not all are started")
            readers += begun
        await eventually(
            lambda: all(
                reader.tokens == cuts[index // len(bodies)] or reader.task.done()
                for index, reader in enumerate(readers)
            ), "tokens do not arrive",
        )  # fmt: skip
        return readers

    def release(self) -> None:
        """Lets the router send the remaining tokens."""
        self.router.state.hold = None
        for stream in self.router.live:
            stream.hold = None


StartStack = Callable[..., AbstractAsyncContextManager[Stack]]


@pytest.fixture
def start_stack(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> StartStack:
    """Starts tokenizer processes with a gateway and a router around them; all end with the context.

    Timeouts are raised, so that a restarted process is waited for however busy the machine is.
    """
    for name in ("tokenizers.CALL_SECONDS", "texts.RESUME_SECONDS"):
        monkeypatch.setattr(f"gateway.services.{name}", WAIT_SECONDS)
    monkeypatch.setattr("gateway.pipeline.CALL_SECONDS", WAIT_SECONDS)

    @contextlib.asynccontextmanager
    async def start(count: int = 2, *arguments: str, **options: Any) -> AsyncIterator[Stack]:
        save_tokenizer(tokenizer_folder)
        async with contextlib.AsyncExitStack() as stack:
            processes = []
            for _ in range(count):
                processes.append(TokenizerProcess(tokenizer_folder, *arguments))
                stack.callback(lambda process=processes[-1]: process.kill())
            router = await FakeRouter().start()
            stack.push_async_callback(router.close)
            addresses = [process.address for process in processes]
            gateway = await stack.enter_async_context(gateway_before([router.address], addresses, **options))
            replicas = gateway.context.pipeline.texts.replicas.known
            await eventually(lambda: all(replica.up for replica in replicas), "not all tokenizers are up")
            yield Stack(gateway, router, processes)
            assert gateway.context.pipeline.num_live == 0
            assert gateway.context.statistics.num_live == 0
            assert not any(replica.live for replica in replicas)

    return start


def various(count: int) -> list[dict[str, Any]]:
    """Requests whose text depends on where the stream was cut."""
    kinds: list[dict[str, Any]] = [
        {}, {"stop": ["END"]}, {"stop": ["END"], "include_stop_str_in_output": True}, {"logprobs": 1},
        {"stop": ["o", "END"], "min_tokens": 60}, {"stop": ["three, one two"]}, {"skip_special_tokens": False},
    ]  # fmt: skip
    return [COMPLETION | kinds[index % KINDS] for index in range(count)]


async def undisturbed(stack: Stack, bodies: list[dict[str, Any]]) -> list[Result]:
    """The results of the streams when nothing is disturbed."""
    stack.router.state.outputs = [await stack.spell(TEXT)]
    return await asyncio.gather(*(Reader(stack.gateway, "/v1/completions", body).result() for body in bodies))


async def kill(tokenizer: TokenizerProcess, alone: bool) -> None:
    tokenizer.kill()
    if alone:
        tokenizer.restart()


async def freeze(tokenizer: TokenizerProcess, alone: bool) -> None:
    tokenizer.signal(signal.SIGSTOP)
    if alone:
        await asyncio.sleep(3)  # until the gateway has lost the replica
        tokenizer.signal(signal.SIGCONT)


async def terminate(tokenizer: TokenizerProcess, alone: bool) -> None:
    tokenizer.signal(signal.SIGTERM)
    if alone:
        await asyncio.to_thread(tokenizer.restart)


@pytest.mark.parametrize(("disturb", "replicas"), [(kill, 1), (freeze, 1), (freeze, 2), (terminate, 2)])
async def test_many_streams(start_stack: StartStack, disturb: Any, replicas: int) -> None:
    """Streams cut within a character and after much text survive while tokens keep arriving for the lost service."""
    bodies, cuts = various(KINDS), [5, 70]
    async with start_stack(replicas, "--drain-timeout-seconds", "0.5") as stack:
        expected = await undisturbed(stack, bodies)
        readers = await stack.hold(bodies, cuts)
        disturbance = asyncio.create_task(disturb(stack.owner(), replicas == 1))
        stack.release()
        assert await asyncio.gather(*(reader.result() for reader in readers)) == expected * len(cuts)
        await disturbance
        assert (await stack.gateway.complete())["choices"][0]["finish_reason"] == "length"
        if disturb is not terminate:
            assert stack.moved >= len(readers) // 3


async def test_every_cut(start_stack: StartStack) -> None:
    bodies = various(KINDS)
    async with start_stack(1) as stack:
        expected = await undisturbed(stack, bodies)
        cuts = [*range(1, WITHIN), len(stack.router.state.outputs[0]) - 1]
        readers = await stack.hold(bodies, cuts)
        (replica,) = stack.pipeline.texts.replicas.known
        replica.link.give_up()
        stack.release()
        assert await asyncio.gather(*(reader.result() for reader in readers)) == expected * len(cuts)
        assert stack.moved >= (WITHIN - 1) * KINDS


async def test_requests_go_to_a_replica_that_is_up(start_stack: StartStack) -> None:
    """Frozen, killed or stopping replicas cost requests time at most, and nothing while other replicas are up."""
    async with start_stack(2, "--drain-timeout-seconds", "20") as stack:
        first, second = stack.tokenizers
        first.signal(signal.SIGSTOP)
        answers = await asyncio.gather(*(stack.gateway.complete() for _ in range(8)))
        assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"length"}
        assert (await stack.gateway.client.get("/health")).status_code == 200
        first.signal(signal.SIGCONT)
        replicas = stack.pipeline.texts.replicas
        await eventually(lambda: all(replica.up for replica in replicas.known))
        second.kill()
        await asyncio.gather(*(stack.gateway.complete() for _ in range(8)))
        second.restart()
        await eventually(lambda: all(replica.up for replica in replicas.known))
        (reader,) = await stack.hold([COMPLETION], [3])
        stopping = stack.owner()
        stopping.signal(signal.SIGTERM)
        await eventually(lambda: any(replica.draining for replica in replicas.known))
        stack.router.state.hold = None
        await asyncio.gather(*(stack.gateway.complete() for _ in range(8)))
        assert [replica.live for replica in replicas.known if replica.draining] == [1]
        stack.release()
        await reader.result()
        await asyncio.to_thread(stopping.process.wait, WAIT_SECONDS)  # its drain has ended
        assert stopping.process.returncode == 0
        await stack.gateway.complete()


async def test_requests_wait_while_the_only_one_starts_anew(start_stack: StartStack) -> None:
    async with start_stack(1) as stack:
        await stack.gateway.complete()
        stack.tokenizers[0].kill()
        await eventually(lambda: not stack.gateway.context.ready, "the gateway does not notice")
        waiting = [asyncio.create_task(stack.gateway.complete(prompt=prompt)) for prompt in ("A", [65])]
        health = await stack.gateway.client.get("/health")
        assert (health.status_code, "tokenizer" in health.text) == (503, True)
        stack.tokenizers[0].restart()
        for answer in await asyncio.gather(*waiting):
            assert answer["choices"][0]["finish_reason"] == "length"


async def test_no_replica_comes_back(start_stack: StartStack, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start_stack(1, request_timeout_seconds=60.0) as stack:
        (reader,) = await stack.hold([COMPLETION], [3])
        monkeypatch.setattr(texts, "RESUME_SECONDS", 0.5)
        monkeypatch.setattr(tokenizers, "CALL_SECONDS", 0.5)
        stack.tokenizers[0].kill()
        response = await stack.gateway.post("/v1/completions", COMPLETION | {"stream": False, "stream_options": None})
        assert (response.status_code, response.headers["retry-after"] in ("1", "2")) == (503, True)
        assert "tokenizer service cannot be reached" in response.json()["error"]["message"]
        await asyncio.wait_for(reader.task, WAIT_SECONDS)
        assert reader.error is not None
        assert (reader.error["code"], "incomplete" in reader.error["message"]) == (503, True)
        await eventually(lambda: not stack.router.live, "the router is not told")


async def test_a_stream_waits_no_longer_than_its_deadline(start_stack: StartStack) -> None:
    async with start_stack(1, request_timeout_seconds=3.0) as stack:
        (reader,) = await stack.hold([COMPLETION], [3])
        stack.tokenizers[0].kill()
        await asyncio.wait_for(reader.task, WAIT_SECONDS)
        assert reader.error is not None
        assert reader.error["code"] == 504


async def test_a_client_that_goes_while_its_text_waits(start_stack: StartStack) -> None:
    async with start_stack(1) as stack:
        (reader,) = await stack.hold([COMPLETION], [3])
        stack.tokenizers[0].kill()
        await eventually(lambda: not stack.pipeline.texts.replicas.connected)
        reader.task.cancel()
        await eventually(lambda: not stack.pipeline.num_live, "not forgotten")
        stack.tokenizers[0].restart()
        await eventually(lambda: stack.gateway.context.ready)
        await stack.gateway.complete()
