"""Requests of tests to an engine worker on a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from quire.errors import QuireError
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, engine_pb2
from tests.support.engine_server import RunningEngine
from tests.support.fake_executor import expected_tokens
from tests.support.plans import sampling_plan

VOCABULARY = 1000
TIMEOUT = 60.0


def generation(prompt: list[int], **fields: Any) -> common_pb2.Generation:
    """A greedy request; `progress` holds the tokens that each of its sequences has already."""
    outer = {
        name: fields.pop(name)
        for name in ("model", "priority", "cache_salt", "timeout_ms", "request_id", "constraint")
        if name in fields
    }
    progress = [common_pb2.ChoiceProgress(token_ids=token_ids) for token_ids in fields.pop("progress", [])]
    sampling = common_pb2.SamplingParams(**({"temperature": 0.0} | fields))
    return common_pb2.Generation(prompt_token_ids=prompt, sampling=sampling, progress=progress, **outer)


def expected(prompt: list[int], count: int) -> list[int]:
    """The expected output for a prompt."""
    return expected_tokens(prompt, count, VOCABULARY, sampling_plan(temperature=0.0))


async def generate(engine: RunningEngine, request: common_pb2.Generation) -> list[common_pb2.GenerationDelta]:
    """All deltas that Generate returns."""
    call = engine.stub.Generate(engine_pb2.EngineServiceGenerateRequest(generation=request), timeout=TIMEOUT)
    return [response.delta async for response in call]


async def generated(engine: RunningEngine, request: common_pb2.Generation) -> list[int]:
    """All tokens that Generate returns, however they are split into deltas."""
    return [token_id for delta in await generate(engine, request) for token_id in delta.token_ids]


async def refusal(engine: RunningEngine, request: common_pb2.Generation) -> QuireError:
    """The error with which Generate refuses a request."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(engine, request)
    return from_rpc_error(caught.value)


async def wait_free(engine: RunningEngine) -> None:
    """Waits until no block is used."""
    async with asyncio.timeout(TIMEOUT):
        while engine.worker.loop.load().used_kv_blocks or engine.worker.loop.load().busy:
            await asyncio.sleep(0.01)
