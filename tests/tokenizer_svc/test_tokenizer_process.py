"""The tokenizer service as a process: its calls, its session, its limits, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.block_hash import block_keys
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.support.engine_process import ROOT, free_port
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ reasoning_effort }}"
SECONDS = 60.0


class Service:
    """A running service."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quire", "tokenizer", str(folder), "--port", str(self.port), *arguments],
            cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        self.stub = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel)

    async def wait_serving(self) -> None:
        health = health_pb2_grpc.HealthStub(self.channel)
        async for answer in health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=30):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return

    async def close(self) -> int:
        await self.channel.close()
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.communicate, timeout=WAIT_SECONDS)
        return self.process.returncode


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(folders: dict[str, Path]) -> AsyncIterator[Service]:
    running = Service(folders["byte_level"], "--chat-template", TEMPLATE, "--max-prompt-chars", "4000")
    await running.wait_serving()
    yield running
    assert await running.close() == 0


async def fails(call: Any, code: grpc.StatusCode, *parts: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code
    assert all(part in (caught.value.details() or "") for part in parts), caught.value.details()


async def test_its_calls(service: Service) -> None:
    encoded = await service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["hello", "größe"]), timeout=SECONDS)
    ids = [list(sequence.token_ids) for sequence in encoded.sequences]
    request = tokenizer_pb2.DecodeRequest(token_ids=ids[1], return_token_bytes=True, return_token_strings=True)
    decoded = await service.stub.Decode(request, timeout=SECONDS)
    assert decoded.text == "größe"
    assert len(decoded.token_strings) == len(ids[1])
    assert b"".join(decoded.token_bytes).decode() == "größe"
    messages = json.dumps([{"role": "user", "content": "hi"}]).encode()
    chat = await service.stub.RenderChat(tokenizer_pb2.RenderChatRequest(messages_json=messages), timeout=SECONDS)
    assert chat.text == "user: hi\n"
    request = tokenizer_pb2.RenderChatRequest(messages_json=messages, default_reasoning_effort="low")
    assert (await service.stub.RenderChat(request, timeout=SECONDS)).text == "user: hi\nlow"
    again = await service.stub.Decode(tokenizer_pb2.DecodeRequest(token_ids=chat.sequence.token_ids), timeout=SECONDS)
    assert again.text == chat.text
    pairs = tokenizer_pb2.EncodePairsRequest(first_texts=["hello"], second_texts=["größe", ""])
    joined = await service.stub.EncodePairs(pairs, timeout=SECONDS)
    assert [list(each.token_ids) for each in joined.sequences] == [ids[0] + ids[1], ids[0]]
    cut = tokenizer_pb2.Truncation(num_tokens=1, keeps_end=True)
    last = await service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["größe"], truncation=cut), timeout=SECONDS)
    assert list(last.sequences[0].token_ids) == ids[1][-1:]
    request = tokenizer_pb2.RenderChatRequest(messages_json=messages, truncation=cut)
    last = await service.stub.RenderChat(request, timeout=SECONDS)
    assert list(last.sequence.token_ids) == list(chat.sequence.token_ids)[-1:]
    info = await service.stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest(), timeout=SECONDS)
    assert info.has_chat_template
    assert list(info.eos_token_ids) == [2]
    told = json.loads(info.config_json)
    assert told["tokenizer_class"] and "message" in told["chat_template"]


async def test_bad_requests(service: Service) -> None:
    stub, bad = service.stub, grpc.StatusCode.INVALID_ARGUMENT
    await fails(stub.Encode(tokenizer_pb2.EncodeRequest(texts=["x" * 4001]), timeout=SECONDS), bad, "4001", "4000")
    await fails(stub.Encode(tokenizer_pb2.EncodeRequest(texts=["x"] * 1025), timeout=SECONDS), bad, "1025")
    for messages in (b"", b"{", b"{}", b"[]", b"[1]"):
        await fails(
            stub.RenderChat(tokenizer_pb2.RenderChatRequest(messages_json=messages), timeout=SECONDS), bad, "messages"
        )
    own = tokenizer_pb2.RenderChatRequest(messages_json=b'[{"role":"user"}]', chat_template="x")
    await fails(stub.RenderChat(own, timeout=SECONDS), bad, "--trust-request-chat-template")
    pairs = tokenizer_pb2.EncodePairsRequest
    wrong = ((["a"] * 2, ["b"] * 3, "cannot be paired"), ([], ["b"], "cannot be paired"), (["a"], ["b"] * 1025, "1025"))
    for firsts, seconds, part in wrong:
        await fails(stub.EncodePairs(pairs(first_texts=firsts, second_texts=seconds), timeout=SECONDS), bad, part)
    await fails(stub.EncodePairs(pairs(first_texts=["x" * 4000], second_texts=["x"]), timeout=SECONDS), bad, "4001")
    own = pairs(first_texts=["a"], second_texts=["b"], chat_template="x")
    await fails(stub.EncodePairs(own, timeout=SECONDS), bad, "--trust-request-chat-template")


async def test_more_tokens_than_are_wanted(service: Service) -> None:
    bad = grpc.StatusCode.INVALID_ARGUMENT
    for texts in (["one two three four"], ["one", "one two " * 400]):
        call = service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=texts, max_tokens=3), timeout=SECONDS)
        await fails(call, bad, "maximum context length is 3 tokens")
    messages = b'[{"role":"user","content":"one two three four"}]'
    chat = tokenizer_pb2.RenderChatRequest(messages_json=messages, max_tokens=3)
    await fails(service.stub.RenderChat(chat, timeout=SECONDS), bad, "maximum context length is 3 tokens")


async def test_an_answer_that_no_message_holds(service: Service) -> None:
    """The text would be hundreds of megabytes, and is refused before it is made."""
    longest = (await service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["added word"]), timeout=SECONDS)).sequences
    token_ids = [longest[0].token_ids[0]] * 2_000_000
    call = service.stub.Decode(tokenizer_pb2.DecodeRequest(token_ids=token_ids), timeout=SECONDS)
    await fails(call, grpc.StatusCode.INVALID_ARGUMENT, "20000000 bytes", "less at a time")


async def test_keys_of_full_blocks(service: Service) -> None:
    long = "a b c d e f g " * 250  # long enough to be encoded in a thread
    for texts, size, salt in ((["one two three"] * 2, 2, "s"), ([long], 16, ""), (["one"], 512, "")):
        request = tokenizer_pb2.EncodeRequest(texts=texts, block_size=size, cache_salt=salt)
        for sequence in (await service.stub.Encode(request, timeout=SECONDS)).sequences:
            assert len(sequence.block_keys) == len(sequence.token_ids) // size
            assert list(sequence.block_keys) == block_keys(sequence.token_ids, size, salt)
    messages = b'[{"role":"user","content":"hello"}]'
    request = tokenizer_pb2.RenderChatRequest(messages_json=messages, block_size=2, cache_salt="t")
    sequence = (await service.stub.RenderChat(request, timeout=SECONDS)).sequence
    assert list(sequence.block_keys) == block_keys(sequence.token_ids, 2, "t")
    plain = await service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["one two three"]), timeout=SECONDS)
    assert not plain.sequences[0].block_keys


@pytest.mark.parametrize(
    ("fields", "parts"),
    [({"block_size": 1025}, ("block_size", "1025", "1024")),
     ({"block_size": 16, "cache_salt": "x" * 129}, ("cache_salt", "129", "128"))],
)  # fmt: skip
async def test_keys_that_cannot_be(service: Service, fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    bad = grpc.StatusCode.INVALID_ARGUMENT
    await fails(service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["x"], **fields), timeout=SECONDS), bad, *parts)
    chat = tokenizer_pb2.RenderChatRequest(messages_json=b'[{"role":"user","content":"x"}]', **fields)
    await fails(service.stub.RenderChat(chat, timeout=SECONDS), bad, *parts)


async def read_deltas(call: Any) -> Any:
    """The next frame that has deltas; EOF at the end."""
    while (frame := await call.read()) is not grpc.aio.EOF and not frame.deltas:
        continue
    return frame


async def test_a_session(service: Service) -> None:
    encoded = await service.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["one. two", "three"]), timeout=SECONDS)
    first, second = (list(sequence.token_ids) for sequence in encoded.sequences)
    call = service.stub.DetokenizeSession(timeout=SECONDS)
    frame = tokenizer_pb2.DetokenizeSessionRequest()
    frame.opens.add(stream_id=7, stop_strings=["."])
    frame.opens.add(stream_id=8, stop_strings=[""])
    frame.opens.add(stream_id=9)
    frame.tokens.add(stream_id=7, token_ids=first)
    frame.tokens.add(stream_id=8, token_ids=second)
    frame.tokens.add(stream_id=9, token_ids=[*second, 2], is_last=True, drop_last_token=True, lookup_token_ids=[2])
    frame.tokens.add(stream_id=7, token_ids=first)
    await call.write(frame)
    answer = await read_deltas(call)
    stopped, refused, whole, late = answer.deltas
    assert (stopped.text, stopped.stop_string) == ("one", ".")
    assert "1 to 256 characters" in refused.error
    assert (whole.text, list(whole.lookup_token_bytes)) == ("three", [b"</s>"])
    assert (len(whole.text_lengths), sum(whole.text_lengths)) == (len(second), len("three"))
    assert "7 is not open" in late.error
    await call.done_writing()
    assert await read_deltas(call) is grpc.aio.EOF


@pytest.mark.slow
async def test_a_session_beats_and_says_that_the_service_stops(folders: dict[str, Path]) -> None:
    running = Service(folders["byte_level"])
    await running.wait_serving()
    call = running.stub.DetokenizeSession(timeout=SECONDS)
    assert [(await call.read()).draining for _ in range(2)] == [False, False]
    await call.write(tokenizer_pb2.DetokenizeSessionRequest(opens=[tokenizer_pb2.DetokenizeOpen(stream_id=1)]))
    running.process.send_signal(signal.SIGTERM)
    while not (await call.read()).draining:
        continue
    frame = tokenizer_pb2.DetokenizeSessionRequest()
    frame.tokens.add(stream_id=1, token_ids=[70], is_last=True)
    await call.write(frame)
    answer = await read_deltas(call)
    assert (answer.draining, answer.deltas[0].error) == (True, "")
    assert await running.close() == 0


@pytest.mark.slow
async def test_a_score_template_writes_pairs(folders: dict[str, Path]) -> None:
    template = (
        "{{ instruction }}{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}|"
        "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    )
    running = Service(folders["byte_level"], "--chat-template", template)
    await running.wait_serving()
    stub, pairs = running.stub, tokenizer_pb2.EncodePairsRequest
    told = b'{"instruction": "Judge: "}'
    answer = await stub.EncodePairs(
        pairs(first_texts=["a?"], second_texts=["one", "two"], template_kwargs_json=told), timeout=SECONDS
    )
    expected = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["Judge: a?|one", "Judge: a?|two"]), timeout=SECONDS)
    assert [each.token_ids for each in answer.sequences] == [each.token_ids for each in expected.sequences]
    assert not answer.sequences[0].token_type_ids
    cut = pairs(first_texts=["a?"], second_texts=["one"], max_second_tokens=1)
    await fails(stub.EncodePairs(cut, timeout=SECONDS), grpc.StatusCode.INVALID_ARGUMENT, "max_tokens_per_doc")
    assert await running.close() == 0


@pytest.mark.slow
async def test_no_chat_template_and_no_constraints(folders: dict[str, Path]) -> None:
    """Most pooling models have neither a chat template nor constraint support; everything else must work."""
    running = Service(folders["word_piece"])
    await running.wait_serving()
    constraint = tokenizer_pb2.CompileConstraintRequest(regex="a")
    call = running.stub.CompileConstraint(constraint, timeout=SECONDS)
    await fails(call, grpc.StatusCode.FAILED_PRECONDITION, "WordPiece", "structured output")
    assert (await running.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["so"]), timeout=SECONDS)).sequences
    request = tokenizer_pb2.RenderChatRequest(messages_json=b'[{"role":"user","content":"hi"}]')
    call = running.stub.RenderChat(request, timeout=SECONDS)
    await fails(call, grpc.StatusCode.FAILED_PRECONDITION, "text instead of messages", "--chat-template")
    assert await running.close() == 0


async def test_a_mistake_at_the_start(folders: dict[str, Path]) -> None:
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "quire", "tokenizer", str(folders["byte_level"]), "--chat-template", "/no/file"],
        cwd=ROOT, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert result.returncode == 1
    assert "--chat-template /no/file" in result.stderr
    assert "Traceback" not in result.stderr
