"""Real engines behind a real router: a stream moves to another worker and keeps the tokens it would have had."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from array import array
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.structured.base import Constraint, ConstraintRequest, Form
from quire.structured.guidance import GuidanceBackend
from quire.structured.vocabulary import make_vocabulary
from quire.tokenizer.files import read_tokenizer_files
from quire.v1 import common_pb2, router_pb2
from router.app import Router
from tests.support.engine_process import free_port
from tests.support.native import AVAILABLE
from tests.support.router_client import GatewaySession, Output, RouterClient, connect
from tests.support.stack import ROOT, quire
from tests.support.tiny_models import make_model
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.slow

START_SECONDS = 180.0
STREAMS = 16
TOKENS = 200  # enough that none finishes before its engine is stopped


@pytest.fixture(scope="module")
def engines(tiny_llama: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Address → process, in bfloat16 with Quire's batch-invariant kernels, or in float32 where they are unavailable."""
    form = ("--dtype", "bfloat16", "--batch-invariant") if AVAILABLE else ("--dtype", "float32")
    ports = [free_port() for _ in range(3)]
    started = {
        f"127.0.0.1:{port}": subprocess.Popen(
            quire(
                "engine", str(tiny_llama), "--port", str(port), *form, "--cpu-threads", "1",
                "--kv-cache-memory-bytes", "32M", "--max-model-len", "1024", "--log-level", "error",
                "--enable-prompt-embeds",
            ),
            cwd=ROOT,
        )
        for port in ports
    }  # fmt: skip
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def router_of(addresses: list[str]) -> AsyncIterator[tuple[Router, RouterClient]]:
    options = RouterOptions(workers=tuple(addresses), routing_policy="round_robin")
    router = Router(options, GrpcServerOptions(), RpcSecurityOptions())
    await router.start()
    try:
        async with connect(router.server.port) as client:
            for address in addresses:
                await client.wait_state(address, router_pb2.WORKER_STATE_READY, START_SECONDS)
            yield router, client
    finally:
        await router.close()


@pytest.fixture(scope="module")
def constraints(tiny_llama: Path) -> list[common_pb2.Constraint]:
    """A constraint that outlasts the outputs, and one that ends them."""
    backend = GuidanceBackend(make_vocabulary(read_tokenizer_files(tiny_llama)))
    wanted = (
        ConstraintRequest(Form.JSON_SCHEMA, '{"type": "array", "minItems": 400, "items": {"type": "integer"}}'),
        ConstraintRequest(Form.REGEX, "([ab]{30} ){3}"),
    )
    made = [Constraint.of("guidance", backend.compile(each)) for each in wanted]
    return [common_pb2.Constraint(backend=each.backend, grammar=each.grammar, key=each.key) for each in made]


def request(number: int, constraints: list[common_pb2.Constraint]) -> common_pb2.Generation:
    """Request number `number`, greedy or seeded.

    By their numbers, requests have penalties, log-probabilities, several sequences, stop tokens or constraints; some
    have forbidden tokens, thinking budgets, or repetitions that end them; the prompts of some are embeddings.
    """
    source = Random(number)
    sampling = common_pb2.SamplingParams(
        max_tokens=TOKENS, ignore_eos=True, temperature=number % 2, n=1 + number % 5 // 4
    )
    if number % 2:
        sampling.seed, sampling.top_p, sampling.top_k = number, 0.95, 50
    if number % 3 == 0:
        sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty = 0.5, 0.3, 1.1
    if number % 4 == 0:
        sampling.logprobs = 3
    if number % 7 == 0:
        sampling.min_tokens = 20
        sampling.stop_token_ids.extend(range(0, 8192, 97))
    if number in (6, 11):
        sampling.allowed_token_ids.extend(range(300, 310))
        for token_id in range(300, 310):
            sampling.bad_words.add(token_ids=[token_id, token_id])
    if number in (2, 12):
        sampling.thinking_token_budget = 60
        sampling.reasoning.end_token_ids.extend([500, 501, 502])
    if number in (3, 8):
        sampling.allowed_token_ids.extend([400, 401])
        sampling.repetition_detection.CopyFrom(common_pb2.RepetitionDetection(max_pattern_size=9, min_count=8))
    prompt = [source.randrange(256) for _ in range(20 + number)]
    constraint = constraints[number // 3 % 2] if number % 3 == 1 else None
    generation = common_pb2.Generation(request_id=f"r{number}", sampling=sampling, constraint=constraint)
    if number in (5, 9, 13):
        values = array("f", [source.gauss(0, 0.02) for _ in range(len(prompt) * 256)])
        generation.prompt_embeds.MergeFrom(
            common_pb2.PromptEmbeds(dtype="float32", hidden_size=256, data=values.tobytes())
        )
    else:
        generation.prompt_token_ids.extend(prompt)
    return generation


async def run_all(session: GatewaySession, first_id: int, constraints: list[common_pb2.Constraint]) -> list[Output]:
    return [await session.start(first_id + number, request(number, constraints)) for number in range(STREAMS)]


def contents(outputs: list[Output]) -> list[tuple[dict[int, list[int]], dict[int, int], int, int]]:
    for output in outputs:
        assert output.error is None
    return [(dict(o.tokens), dict(o.scored), o.usage.prompt_tokens, o.usage.completion_tokens) for o in outputs]


async def test_streams_survive_a_freeze_a_drain_and_a_kill(
    engines: dict[str, subprocess.Popen[bytes]], constraints: list[common_pb2.Constraint]
) -> None:
    async with router_of(list(engines)) as (router, client), client.session() as session:
        undisturbed = contents([await output.wait_ended() for output in await run_all(session, 0, constraints)])
        for turn, number in enumerate((signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL), start=1):
            address = list(engines)[turn - 1]
            outputs = await run_all(session, 1000 * turn, constraints)
            for output in outputs:
                await output.wait_tokens()
            moved = router.metrics.get_sample_value("quire_router_migrations_total") or 0
            engines[address].send_signal(number)
            for output in outputs:
                await output.wait_ended()
            assert contents(outputs) == undisturbed
            assert {output.finals for output in outputs} == {1}
            now = router.metrics.get_sample_value("quire_router_migrations_total") or 0
            assert (now > moved) == (number != signal.SIGTERM)  # a draining engine finishes what it has
            if number == signal.SIGSTOP:
                engines[address].send_signal(signal.SIGCONT)
                await client.wait_ready(address)

        async def blocks_held() -> int:
            states = await client.workers()
            return sum(w.load.used_kv_blocks for w in states.values() if w.state == router_pb2.WORKER_STATE_READY)

        async with asyncio.timeout(WAIT_SECONDS):
            while await blocks_held():
                await asyncio.sleep(0.1)
        await eventually(lambda: not len(router.table))


LAYOUTS = (("-tp", "2", "-dcp", "2"), ("-pp", "2"), ())


@pytest.fixture
def layouts(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Address → process of workers of one model, each with another layout of ranks."""
    folder = make_model(tmp_path, "llama", num_key_value_heads=1)
    started = {}
    for layout in LAYOUTS:
        port = free_port()
        started[f"127.0.0.1:{port}"] = subprocess.Popen(
            quire(
                "engine", str(folder), "--port", str(port), "--dtype", "float32", *layout, "--cpu-threads", "1",
                "--kv-cache-memory-bytes", "4M", "--log-level", "error",
            ),
            cwd=ROOT,
        )  # fmt: skip
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def plain_request(number: int) -> common_pb2.Generation:
    """A greedy or a seeded request."""
    sampling = common_pb2.SamplingParams(max_tokens=100, ignore_eos=True, temperature=number % 2, seed=number)
    prompt = [Random(number).randrange(96) for _ in range(20 + number)]
    return common_pb2.Generation(request_id=f"r{number}", sampling=sampling, prompt_token_ids=prompt)


async def test_streams_move_between_workers_of_different_layouts(
    layouts: dict[str, subprocess.Popen[bytes]],
) -> None:
    """Workers are killed one after another, and their streams continue on those that are left, finally on a single
    rank.

    Which worker a stream begins on differs between runs; its tokens do not.
    """

    async def start(session: GatewaySession, first_id: int) -> list[Output]:
        return [await session.start(first_id + number, plain_request(number)) for number in range(STREAMS)]

    async with router_of(list(layouts)) as (router, client), client.session() as session:
        undisturbed = contents([await output.wait_ended() for output in await start(session, 0)])
        for turn, process in enumerate([*layouts.values()][:-1], start=1):
            outputs = await start(session, 1000 * turn + turn)
            for output in outputs:
                await output.wait_tokens()
            moved = router.metrics.get_sample_value("quire_router_migrations_total") or 0
            process.kill()
            for output in outputs:
                await output.wait_ended()
            assert contents(outputs) == undisturbed
            assert (router.metrics.get_sample_value("quire_router_migrations_total") or 0) > moved
