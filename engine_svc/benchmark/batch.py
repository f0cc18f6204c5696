"""Runs a batch of requests that are submitted to an engine all at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_svc.executor.base import create_executor
from engine_svc.requests.outputs import SequenceDelta
from engine_svc.requests.request import GenerationRequest
from engine_svc.worker import EngineWorker, first_of
from quire.errors import QuireError, StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters


@dataclass(frozen=True)
class Prompt:
    """One prompt, and the number of tokens of its answer."""

    token_ids: list[int]
    output_tokens: int


@dataclass(frozen=True)
class Batch:
    """Results of a batch of prompts."""

    seconds: float
    prompt_tokens: int
    output_tokens: int  # of all answers


@contextlib.asynccontextmanager
async def running_engine(model: ModelOptions, engine: EngineOptions, requests: int) -> AsyncIterator[EngineWorker]:
    """Runs an engine, with its model loaded, until the end of the context.

    Args:
        requests: most requests that wait at a time.

    Raises:
        StartupError: the model cannot be served.
    """
    most = max(requests, engine.scheduler.max_waiting_requests)
    roomy = replace(engine, scheduler=replace(engine.scheduler, max_waiting_requests=most))
    worker = EngineWorker(create_executor(engine.parallel), model, roomy)
    try:
        await worker.load()
        yield worker
    finally:
        await worker.stop()


async def run_batch(worker: EngineWorker, prompts: Sequence[Prompt], n: int) -> Batch:
    """Submits all prompts to the engine and waits for the last token.

    Answers are sampled at temperature 1 and always have the maximum length.

    Raises:
        StartupError: a prompt does not fit, or the engine fails.
    """
    answers = _Answers(len(prompts))
    start = time.perf_counter()
    try:
        for number, prompt in enumerate(prompts):
            sampling = SamplingParameters(n=n, temperature=1.0, max_tokens=prompt.output_tokens, ignore_eos=True)
            worker.submit(GenerationRequest(f"bench-{number}", prompt.token_ids, sampling), answers)
        await first_of(answers.done, worker.loop.died)
    except QuireError as error:
        raise StartupError(f"The engine cannot answer prompt {number}: {error.message}") from error
    seconds = time.perf_counter() - start
    return Batch(seconds, sum(len(prompt.token_ids) for prompt in prompts), answers.tokens)


class _Answers:
    """Counts the tokens of the answers.

    Attributes:
        done: completed when the last answer has ended, or with the error of the first that failed.
    """

    def __init__(self, expected: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tokens = 0
        self._missing = expected

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        """See `Sink`."""
        for delta in deltas:
            self.tokens += len(delta.token_ids)
            self._missing -= delta.is_final
            if delta.error and not self.done.done():
                self.done.set_exception(StartupError(f"The engine failed: {delta.error.message}"))
        if not self._missing and not self.done.done():
            self.done.set_result(None)


def write_json(path: str, result: Mapping[str, Any]) -> None:
    """Writes a result to a JSON file.

    Raises:
        StartupError: the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(result, indent=4) + "\n", encoding="utf-8")
    except OSError as error:
        raise StartupError(f"--output-json {path} cannot be written: {error}.") from error
