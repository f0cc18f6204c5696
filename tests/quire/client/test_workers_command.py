"""`quire workers` as users run it, against a router with workers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from quire.client.fleet_table import fleet_table
from quire.options.server import RpcSecurityOptions
from quire.v1 import common_pb2, router_pb2
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.engine_process import free_port
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually

ROOT = Path(__file__).parents[3]
PROMPT = list(range(160))  # ten blocks


@dataclass(frozen=True)
class Answer:
    """The command's exit status and output."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", "workers", *arguments,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def workers(address: str, *arguments: str) -> Answer:
    process = await start("--router-address", address, *arguments)
    stdout, stderr = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    assert process.returncode is not None
    return Answer(process.returncode, stdout.decode(), stderr.decode())


def address_of(running: Running) -> str:
    return f"127.0.0.1:{running.router.server.port}"


async def test_lists_the_fleet(start_engine: StartEngine, start_router: StartRouter) -> None:
    one, other = await start_engine(models=("a" * 40,)), await start_engine(models=("a" * 40,))
    router = await start_router(one.address, other.address)
    await router.client.generate(generation(PROMPT, 2))
    await router.client.generate(generation(PROMPT, 2))  # all but the last block is cached
    router.router.registry.announce("test", {gone := f"127.0.0.1:{free_port()}"})
    await eventually(lambda: any(worker.condition.reason != "no connection yet" and not worker.ready
                                 for worker in router.router.registry.workers))  # fmt: skip
    answer = await workers(address_of(router))
    assert answer.status == 0, answer.stderr
    header, *rows, reason, total = answer.lines
    assert header.split()[:4] == ["ADDRESS", "STATE", "MODEL", "RUN"]
    assert sorted(row.split()[0] for row in rows) == sorted([one.address, other.address, gone])
    served = next(row for row in rows if "45%" in row).split()
    assert served[1:4] == ["ready", "…" + "a" * 23, "0"]
    assert served[6] == "10"  # blocks cached
    assert next(row for row in rows if gone in row).split()[1:3] == ["starting", "-"]
    assert reason.startswith(f"{gone}: ")
    assert total == "2 of 3 ready, 0 requests of this router, hit rate 45%"
    assert max(map(len, answer.lines[:4])) <= 120
    assert "\x1b" not in answer.stdout


async def test_json_holds_what_the_table_leaves_out(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    router = await start_router(engine.address)
    answer = await workers(address_of(router), "--json")
    (worker,) = json.loads(answer.stdout)["workers"]
    assert worker["address"] == engine.address
    assert worker["state"] == "WORKER_STATE_READY"
    assert worker["cached_blocks"] == "0"
    assert worker["model_info"]["fingerprint"] == "fake"


async def test_explains_a_placement(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(), await start_engine()]
    router = await start_router(*(engine.address for engine in engines))
    await router.client.generate(generation(PROMPT, 2))
    warm = next(engine for engine in engines if engine.record.started)
    cold = next(engine for engine in engines if not engine.record.started)
    await router.client.generate(generation(PROMPT, 2, request_id="again"))

    # The API shows the id with a prefix.
    answer = await workers(address_of(router), "--explain", "chatcmpl-again")
    assert answer.status == 0, answer.stderr
    header, first, second, head, reason = answer.lines
    assert header.split() == ["ADDRESS", "CACHED", "HOST", "OF", "QUEUE", "SEQS", "KV", "COST", "MS"]
    assert first.split()[:5] == ["*", warm.address, "144", "0", "160"]
    assert second.split()[:4] == [cold.address, "0", "0", "160"]
    assert head.startswith("again: placed by prefix in ")
    assert reason.startswith(f"{warm.address} was cheapest, ")
    assert "with 144 of 160 prompt tokens cached" in reason

    others = await workers(address_of(router), "--explain", "again", "--host-tier", "1", "--temperature", "0")
    assert others.lines[0].endswith("BY YOURS")
    assert others.lines[-1] == (
        "The prefix policy with --host-tier 1, --temperature 0 would have chosen the same worker."
    )


async def test_explains_a_policy_that_looks_at_no_costs(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(), await start_engine()]
    router = await start_router(*(engine.address for engine in engines), routing_policy="round_robin")
    await router.client.generate(generation(PROMPT, 2, request_id="one"))
    answer = await workers(address_of(router), "--explain", "one")
    assert "was chosen by round_robin, which does not compare these costs." in answer.stdout
    assert answer.lines[-1].startswith("The prefix policy would have chosen ")


async def test_an_unknown_request(start_router: StartRouter) -> None:
    router = await start_router()
    answer = await workers(address_of(router), "--explain", "nobody")
    assert answer.status == 1
    assert answer.stderr.startswith("Error: The placement of request 'nobody' is not known")


async def test_watch_shows_changes_until_interrupted(start_engine: StartEngine, start_router: StartRouter) -> None:
    router = await start_router()
    process = await start("--router-address", address_of(router), "--watch", "0.1")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            assert b"The router has no workers" in await process.stdout.readline()
            engine = await start_engine()
            router.router.registry.announce("test", {engine.address})
            while b"1 of 1 ready" not in await process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            _, stderr = await process.communicate()
        assert (process.returncode, stderr) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_mistakes_are_explained(start_engine: StartEngine, start_router: StartRouter) -> None:
    nobody = await workers(f"127.0.0.1:{free_port()}")
    assert nobody.status == 1
    assert len(nobody.stderr.splitlines()) == 1
    assert "--router-address" in nobody.stderr

    engine = await start_engine()
    assert "is not a router" in (await workers(engine.address)).stderr

    secured = await start_router(security=RpcSecurityOptions(grpc_token="secret"))
    refused = await workers(address_of(secured))
    assert refused.status == 1
    assert "--grpc-token" in refused.stderr
    assert (await workers(address_of(secured), "--grpc-token", "secret")).status == 0

    without = await workers(address_of(secured), "--temperature", "1")
    assert without.status == 2
    assert "--explain" in without.stderr


def test_data_parallel_ranks_have_their_numbers_before_them() -> None:
    first = router_pb2.Worker(address="a:1", model_info=common_pb2.ModelInfo(data_parallel_rank=0))
    header, *rows, _ = fleet_table([first, router_pb2.Worker(address="b:2")]).splitlines()
    assert [line.split()[:2] for line in (header, *rows)] == [["RANK", "ADDRESS"], ["0", "a:1"], ["-", "b:2"]]
