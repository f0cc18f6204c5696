"""Benefit of placement policies, with real processes and through HTTP: `python -m benchmarks.router_fleet`.

Runs four engine workers with small KV caches behind Quire's router, under one policy after the other, each with a
gateway. With `--sglang-venv VENV`, a virtual environment with sglang-router, that router is measured too; since it
routes to OpenAI servers, each worker then gets its own gateway and router. The loads are those of router_loads.py, with
new texts in each run. The runs take turns, because the speed of a shared machine drifts: only ratios count.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import Service, engines, gateway, router, service, tokenizer, wait_answering
from benchmarks.load import Result
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build
from benchmarks.router_loads import Chats, Server, SharedPrefixes
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.serve.ports import free_ports
from quire.v1 import engine_pb2, engine_pb2_grpc

_SHAPE = "tiny-llama"
_ENGINE = ("--max-num-seqs", "16", "--kv-cache-memory-bytes", "12M")
_LOADS = (Chats(), SharedPrefixes())
_POLICIES = ("prefix", "least_loaded", "round_robin")
_SGLANG_POLICIES = ("cache_aware", "round_robin")
_BASELINE = "round_robin"
_COLUMNS = (
    "load", "router", "policy", "hit rate", "TTFT mean / p50 / p99 ms", "tok/s", "requests, max / mean of workers",
    "TTFT / round_robin", "tok/s / round_robin",
)  # fmt: skip


@dataclass(frozen=True)
class Front:
    """A router with a policy."""

    router: str
    policy: str


@dataclass(frozen=True)
class Run:
    """The result of one load through one front."""

    front: Front
    load: str
    result: Result
    requests: Sequence[float]  # number of requests on each worker

    @property
    def mean_first(self) -> float:
        """TTFT in seconds."""
        return statistics.fmean(timings.first for timings in self.result.timings)


def main() -> None:
    arguments = _parse()
    model = Path(".cache/models") / _SHAPE
    build(_SHAPE, model)
    fronts = [Front("quire", policy) for policy in _POLICIES]
    if arguments.sglang_venv:
        fronts += [Front("sglang-router", policy) for policy in _SGLANG_POLICIES]
    else:
        print("without sglang-router: name a virtual environment that has it with --sglang-venv", file=sys.stderr)
    runs = []
    with engines(model, arguments.engines, _ENGINE) as workers, tokenizer(model) as tokens:
        for number in range(arguments.rounds):
            for turn in range(len(fronts)):
                front = fronts[(number + turn) % len(fronts)]
                with _running(front, workers, tokens, arguments.sglang_venv) as server:
                    runs += asyncio.run(_measure(front, workers, server, seed=number * len(fronts) + turn))
                print(f"round {number + 1}: {front.router} {front.policy}", file=sys.stderr)
    print(heading())
    print(report(runs))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sglang-venv", type=Path)
    return parser.parse_args()


@contextmanager
def _running(
    front: Front, workers: Sequence[Service], tokens: Service, sglang_venv: Path | None
) -> Iterator[Service]:  # fmt: skip
    """An OpenAI server in front of the workers."""
    with ExitStack() as stack:
        if sglang_venv is None or front.router == "quire":
            policy = ["--routing-policy", front.policy]
            yield stack.enter_context(gateway([stack.enter_context(router(workers, policy))], [tokens]))
            return
        backends = [
            stack.enter_context(gateway([stack.enter_context(router([worker], []))], [tokens])) for worker in workers
        ]
        command = [
            str(sglang_venv / "bin" / "python"), "-m", "sglang_router.launch_router", "--policy", front.policy,
            "--host", "127.0.0.1", "--log-level", "warn", "--prometheus-port", str(free_ports(1)[0]),
            "--worker-urls", *(f"http://{backend.address}" for backend in backends),
        ]  # fmt: skip
        server = stack.enter_context(service("sglang-router", command))
        wait_answering(server)
        yield server


async def _measure(front: Front, workers: Sequence[Service], server: Service, seed: int) -> list[Run]:
    """Runs all loads, after a warm-up."""
    vocab_size = SHAPES[_SHAPE]["vocab_size"]
    await SharedPrefixes(prefixes=24, requests_per_client=4, most_thinking=0).run(
        Server(server.port, vocab_size), seed=-1 - seed
    )
    runs = []
    for load in _LOADS:
        before = await _generated(workers)
        result = await load.run(Server(server.port, vocab_size), seed)
        after = await _generated(workers)
        requests = [(now - then) / load.output_length for then, now in zip(before, after, strict=True)]
        runs.append(Run(front, load.name, result, requests))
    return runs


async def _generated(workers: Sequence[Service]) -> list[int]:
    """Tokens that each worker has generated since its start."""
    found = []
    for worker in workers:
        async with open_channel(worker.address, RpcSecurityOptions()) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            answer = await stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=CALL_SECONDS)
            found.append(int(answer.load.counters.generation_tokens))
    return found


def report(runs: Sequence[Run]) -> str:
    """The table as Markdown, with medians of ratios over the rounds."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for load in dict.fromkeys(run.load for run in runs):
        for front in sorted({run.front for run in runs}, key=lambda front: (front.router, front.policy)):
            mine = [run for run in runs if (run.load, run.front) == (load, front)]
            baseline = [run for run in runs if (run.load, run.front) == (load, Front(front.router, _BASELINE))]
            lines.append(f"| {load} | {front.router} | {front.policy} | {' | '.join(_figures(mine, baseline))} |")
    return "\n".join(lines)


def _figures(runs: Sequence[Run], baseline: Sequence[Run]) -> list[str]:
    timings = [timing for run in runs for timing in run.result.timings]
    firsts = sorted(timing.first * 1e3 for timing in timings)
    spread = (statistics.fmean(firsts), firsts[len(firsts) // 2], firsts[int(len(firsts) * 0.99)])
    hit = sum(timing.cached_tokens for timing in timings) / sum(timing.prompt_tokens for timing in timings)
    uneven = [max(run.requests) / statistics.fmean(run.requests) for run in runs]
    pairs = list(zip(runs, baseline, strict=True))
    return [
        f"{hit:.1%}",
        " / ".join(f"{figure:.0f}" for figure in spread),
        f"{statistics.median(run.result.tokens_per_second for run in runs):.0f}",
        f"{statistics.median(uneven):.2f}",
        f"{statistics.median(run.mean_first / other.mean_first for run, other in pairs):.2f}",
        f"{statistics.median(r.result.tokens_per_second / o.result.tokens_per_second for r, o in pairs):.2f}",
    ]


if __name__ == "__main__":
    main()
