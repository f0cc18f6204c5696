"""What workers for prompts alone spare running streams: `python -m benchmarks.prefill_workers`.

Two engine workers with a thread each, behind a router: one computes prompts and the other generates
(--kv-transfer-config), which loads the blocks from a folder of both or pulls them over gRPC; or both do both. Streams
run while long prompts arrive one after the other. Prints the gaps between tokens of the streams, the time to the first
token of the long prompts, and how long their next ones took, which includes the hand-over. The forms take turns,
because the speed of a shared machine drifts: only ratios count.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.fleet import Service, engines, router
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build
from benchmarks.router_client import Answer, RouterClient, connect
from quire.v1 import common_pb2

_SHAPE = "small-llama"
_LATE_SECONDS = 0.2
_HEAD_START_SECONDS = 2.0
_COLUMNS = (
    "workers", "gaps in streams, p50 / p99 / max, ms", "late gaps, and their sum", "TTFT of long prompts, p50 / max, s",
    "longest gap after it, p50 / max, ms", "handed over",
)  # fmt: skip
# How blocks are exchanged, by the name of the form; not at all if both workers do both.
_FORMS = {
    "one for prompts, one that generates, a folder": "SharedStorageConnector",
    "one for prompts, one that generates, gRPC": "GrpcConnector",
    "two that do both": "",
}


def main() -> None:
    arguments = _parse()
    model = Path(".cache/models") / _SHAPE
    build(_SHAPE, model)
    print(heading())
    print(f"{arguments.streams} streams of {arguments.stream_tokens} tokens and {arguments.prompts} prompts of "
          f"{arguments.prompt_tokens}, {arguments.interval} s apart; late is over {_LATE_SECONDS} s.\n")  # fmt: skip
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|", flush=True)
    for _ in range(arguments.rounds):
        for name, connector in _FORMS.items():
            print(_row(name, *_measure(model, connector, arguments)), flush=True)


def _measure(model: Path, connector: str, arguments: argparse.Namespace) -> tuple[list[Answer], list[Answer], int]:
    """One run with new workers: (streams, long prompts, number of the latter that moved)."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        workers = [
            worker
            for role in ("kv_producer", "kv_consumer")
            for worker in stack.enter_context(engines(model, 1, _options(connector, role, folder)))
        ]
        service = stack.enter_context(router(workers, ()))
        return asyncio.run(_run(service, len(workers), arguments))


def _options(connector: str, role: str, folder: str) -> list[str]:
    options = ["--kv-cache-memory-bytes", "1G", "--max-num-batched-tokens", "512"]
    if connector:
        own = {"local_storage_path": f"{folder}/{role}"}
        extra = own if connector == "GrpcConnector" else {"shared_storage_path": folder}
        config = {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra}
        options += ["--kv-transfer-config", json.dumps(config)]
    return options


async def _run(
    service: Service, num_workers: int, arguments: argparse.Namespace
) -> tuple[list[Answer], list[Answer], int]:
    source = random.Random(0)
    async with connect(service.address) as client:
        await client.wait_ready(num_workers)
        for number in range(num_workers):
            await client.complete(_request(source, f"warm-up-{number}", 2 * arguments.prompt_tokens, 4))
        streams = [
            await client.start(_request(source, f"stream-{number}", 100, arguments.stream_tokens))
            for number in range(arguments.streams)
        ]
        await asyncio.sleep(_HEAD_START_SECONDS)
        requests = [_request(source, f"long-{n}", arguments.prompt_tokens, 30) for n in range(arguments.prompts)]
        prompts = []
        for request in requests:
            prompts.append(await client.start(request))
            await asyncio.sleep(arguments.interval)
        for answer in streams + prompts:
            await answer.wait_ended()
            if answer.error:
                raise SystemExit(answer.error)
        moved = [await _attempts(client, request) > 1 for request in requests]
    return streams, prompts, sum(moved)


async def _attempts(client: RouterClient, request: common_pb2.Generation) -> int:
    return (await client.placement(request.request_id)).attempt


def _request(source: random.Random, request_id: str, prompt_tokens: int, max_tokens: int) -> common_pb2.Generation:
    prompt = [source.randrange(SHAPES[_SHAPE]["vocab_size"]) for _ in range(prompt_tokens)]
    sampling = common_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
    return common_pb2.Generation(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)


def _row(name: str, streams: Sequence[Answer], prompts: Sequence[Answer], moved: int) -> str:
    gaps = sorted(later - earlier for each in streams for earlier, later in itertools.pairwise(each.times))
    late = [gap for gap in gaps if gap > _LATE_SECONDS]
    first = [each.times[0] - each.sent for each in prompts]
    longest = [each.longest_gap for each in prompts]
    cells = (
        name,
        " / ".join(f"{seconds * 1e3:.0f}" for seconds in (gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100], gaps[-1])),
        f"{len(late)} of {len(gaps)}, {sum(late):.1f} s",
        f"{statistics.median(first):.2f} / {max(first):.2f}",
        f"{statistics.median(longest) * 1e3:.0f} / {max(longest) * 1e3:.0f}",
        f"{moved} of {len(prompts)}",
    )
    return f"| {' | '.join(cells)} |"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--stream-tokens", type=int, default=800)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=3.5, help="seconds between two long prompts")
    return parser.parse_args()


if __name__ == "__main__":
    main()
