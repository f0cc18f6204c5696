"""What callers notice when a worker dies, freezes or drains under load: `python -m benchmarks.router_faults`.

Runs engine workers and a router as separate processes, and seeded streams, first undisturbed, then while one of the
workers is killed, stopped for a while, or told to shut down. Prints for each fault: failed streams; streams with tokens
that differ from the undisturbed run, and by how much their log-probabilities differ; the longest time between two
tokens of a stream that moved; and the KV blocks that remain allocated afterwards although no request needs them.

The model is in float32. On a CPU, torch's matrix products of fewer than four rows round differently from larger ones,
which shows at near ties. Other streams, four for each worker, keep the number of rows above that, so that all
differences come from moving.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import Service, engines, router
from benchmarks.machine import heading
from benchmarks.models import build
from benchmarks.router_client import Answer, RouterClient, connect
from quire.v1 import common_pb2

_VOCABULARY = 8192
_PROMPT_TOKENS = 64
_COMPANY = 4  # streams for each worker
_COMPANY_TOKENS = 3000
_COLUMNS = (
    "fault", "streams", "moved", "errors", "other tokens", "log-probabilities differ by", "longest gap, moved",
    "mean, moved", "longest gap, others", "KV blocks left", "goal",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What happens to one worker, and how it recovers."""

    name: str
    number: signal.Signals
    seconds: float  # how long the worker is stopped; 0 means that it ends, and is restarted
    goal: str


FAULTS = (
    Fault("kill -9", signal.SIGKILL, 0, "gap 1 s"),
    Fault("SIGSTOP for 6 s", signal.SIGSTOP, 6.0, "gap 3 s"),
    Fault("SIGTERM", signal.SIGTERM, 0, "none moves, or gap 1 s"),
)


@dataclass(frozen=True)
class Outcome:
    """One run of all streams."""

    answers: Sequence[Answer]
    moved: Sequence[bool]
    kv_blocks_left: int


def main() -> None:
    arguments = _parse()
    model = Path(".cache/models") / arguments.model
    build(arguments.model, model)
    seqs = str(arguments.max_num_seqs)
    options = ["--dtype", "float32", "--max-num-seqs", seqs, "--kv-cache-memory-bytes", "64M"]
    policy = ["--routing-policy", "least_loaded"]  # so that all workers have the same number of streams
    print(heading())
    with engines(model, arguments.engines, options) as workers, router(workers, policy) as service:
        print(asyncio.run(_measure(workers, service, arguments)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tiny-llama", help="shape, as benchmarks/models.py names it")
    parser.add_argument("--at", type=float, default=0.25, help="share of its tokens that each stream has at the fault")
    parser.add_argument("--max-num-seqs", type=int, default=16, help="of an engine")
    return parser.parse_args()


async def _measure(workers: Sequence[Service], service: Service, arguments: argparse.Namespace) -> str:
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    async with connect(service.address) as client:
        await client.wait_ready(len(workers))
        await _run(client, workers, _requests(arguments, "warm-up"), None)
        reference = await _run(client, workers, _requests(arguments, "reference"), None)
        for fault in (None, *FAULTS):
            name = fault.name if fault else "none"
            outcomes = [
                await _run(
                    client, workers, _requests(arguments, f"{name.replace(' ', '-')}-{number}"), fault, arguments.at
                )
                for number in range(arguments.rounds)
            ]
            lines.append(_row(name, fault.goal if fault else "", outcomes, reference))
    return "\n".join(lines)


def _requests(arguments: argparse.Namespace, run: str) -> list[common_pb2.Generation]:
    """Requests, half greedy, half sampled with penalties; each has its own prompt, the same in every run."""
    source = random.Random(0)
    found = []
    for index in range(arguments.streams):
        prompt = [source.randrange(258, _VOCABULARY) for _ in range(_PROMPT_TOKENS)]
        sampling = common_pb2.SamplingParams(
            max_tokens=arguments.output_len, ignore_eos=True, temperature=0, seed=index, logprobs=2
        )
        if index % 2:
            sampling.MergeFrom(
                common_pb2.SamplingParams(
                    temperature=0.8, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2
                )
            )
        found.append(common_pb2.Generation(request_id=f"{run}-{index}", prompt_token_ids=prompt, sampling=sampling))
    return found


def _company(num_workers: int, run: str) -> list[common_pb2.Generation]:
    """Additional streams that outlast the others."""
    sampling = common_pb2.SamplingParams(max_tokens=_COMPANY_TOKENS, ignore_eos=True, temperature=0)
    return [
        common_pb2.Generation(
            request_id=f"{run}-company-{index}", prompt_token_ids=[300 + index] * _PROMPT_TOKENS, sampling=sampling
        )
        for index in range(_COMPANY * num_workers)
    ]


async def _run(
    client: RouterClient, workers: Sequence[Service], requests: Sequence[common_pb2.Generation], fault: Fault | None,
    at: float = 0.0,
) -> Outcome:  # fmt: skip
    """Runs all streams at once; when each has the share `at` of its tokens, the fault hits the busiest worker."""
    company = [await client.start(request) for request in _company(len(workers), requests[0].request_id)]
    while not all(answer.token_ids for answer in company):
        await asyncio.sleep(0.005)
    answers = [await client.start(request) for request in requests]
    struck = None
    if fault:
        begun = int(at * requests[0].sampling.max_tokens)
        while any(len(answer.token_ids) < begun and not answer.error for answer in answers):
            await asyncio.sleep(0.005)
        struck = await _busiest(client, workers, requests, answers)
        struck.signal(fault.number)
    since = time.monotonic()
    for answer in answers:
        await answer.wait_ended()
    await client.abort(company)
    attempts = [(await client.placement(request.request_id)).attempt for request in requests]
    if fault and struck:
        if fault.seconds:
            await asyncio.sleep(max(0.0, since + fault.seconds - time.monotonic()))
            struck.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(struck.restart)
    await client.wait_ready(len(workers))
    return Outcome(answers, [attempt > 1 for attempt in attempts], await client.blocks_left())


async def _busiest(
    client: RouterClient, workers: Sequence[Service], requests: Sequence[common_pb2.Generation],
    answers: Sequence[Answer],
) -> Service:  # fmt: skip
    """The worker with the most unfinished streams."""
    counts: Counter[str] = Counter()
    for request, answer in zip(requests, answers, strict=True):
        if not answer.ended.is_set():
            counts[(await client.placement(request.request_id)).chosen] += 1
    ((address, _),) = counts.most_common(1)
    return next(worker for worker in workers if worker.address == address)


def _row(name: str, goal: str, outcomes: Sequence[Outcome], reference: Outcome) -> str:
    """All rounds of one fault as a row of the table."""
    pairs = [
        (answer, undisturbed, moved)
        for outcome in outcomes
        for answer, undisturbed, moved in zip(outcome.answers, reference.answers, outcome.moved, strict=True)
    ]
    cells = [
        name,
        len(pairs),
        sum(moved for _, _, moved in pairs),
        sum(bool(answer.error) for answer, _, _ in pairs),
        sum(answer.token_ids != undisturbed.token_ids for answer, undisturbed, _ in pairs),
        f"{max(_difference(answer.logprobs, undisturbed.logprobs) for answer, undisturbed, _ in pairs):.1g}",
        _longest_gap([answer for answer, _, moved in pairs if moved]),
        _mean_gap([answer for answer, _, moved in pairs if moved]),
        _longest_gap([answer for answer, _, moved in pairs if not moved]),
        sum(outcome.kv_blocks_left for outcome in outcomes),
        goal,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The greatest difference of log-probabilities, over the common length, even if tokens differ."""
    return max((abs(one - other) for one, other in zip(ours, theirs, strict=False)), default=0.0)


def _longest_gap(answers: Sequence[Answer]) -> str:
    return f"{max(answer.longest_gap for answer in answers):.2f} s" if answers else ""


def _mean_gap(answers: Sequence[Answer]) -> str:
    """Mean of the streams' longest gaps."""
    return f"{statistics.mean(answer.longest_gap for answer in answers):.2f} s" if answers else ""


if __name__ == "__main__":
    main()
