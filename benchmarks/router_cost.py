"""Cost of routing: `python -m benchmarks.router_cost`.

Runs in one process, without sockets unless these are measured. Measures lookups and memory of the prefix index,
compared with a radix tree that follows the prompt block by block; decisions and placements; the router's own time for
each token that it passes on; and loading a million blocks from engines' snapshots.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.machine import heading
from quire.options.router import RouterOptions
from quire.runners import GENERATE, wrong_runner
from quire.v1 import common_pb2, engine_pb2
from router.core import RouterCore
from router.index.feed import KvFeed
from router.index.members import Members
from router.index.prefix_index import PrefixIndex, WorkerBlocks
from router.main import calm_collector
from router.metrics import RouterMetrics
from router.placement.placement import PlacementTable
from router.requests.dispatch import Dispatcher
from router.requests.fair_queue import FairQueue
from router.requests.sessions import Stream
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.state import Condition, State

_WORKERS = 64
_TENANTS = 2000
_BLOCK_SIZE = 16


class RadixTree:
    """The simple data structure: a node for each block, with its children and the workers that hold it."""

    def __init__(self) -> None:
        self.children: dict[int, RadixTree] = {}
        self.workers: set[int] = set()

    def store(self, worker: int, keys: Sequence[int]) -> None:
        node = self
        for key in keys:
            node = node.children.setdefault(key, RadixTree())
            node.workers.add(worker)

    def match(self, keys: Sequence[int]) -> dict[int, int]:
        """Worker → number of matching blocks."""
        found: dict[int, int] = {}
        node = self
        for depth, key in enumerate(keys):
            child = node.children.get(key)
            if child is None:
                break
            node = child
            for worker in node.workers:
                found[worker] = depth + 1
        return found


class SilentWorker(Worker):
    """A worker that accepts requests and does nothing."""

    def __init__(self, number: int, index: PrefixIndex) -> None:
        super().__init__(f"worker-{number}:50053")
        self._blocks = index.join()
        info = common_pb2.ModelInfo(
            served_model_names=["bench"], block_size=_BLOCK_SIZE, max_num_seqs=1 << 20, max_num_batched_tokens=1 << 31
        )
        self.learn(info)

    @property
    def condition(self) -> Condition:
        return Condition(State.READY)

    @property
    def blocks(self) -> WorkerBlocks:
        return self._blocks

    def start_generation(
        self, stream_id: int, assignment: Assignment, timeout_ms: int, *, hands_over: bool = False
    ) -> None:
        """Does nothing."""

    def abort(self, stream_id: int) -> None:
        """Does nothing."""

    def stop(self, stream_id: int, choice_index: int, num_output_tokens: int) -> None:
        """Does nothing."""

    def hear(self, stream_id: int, append: engine_pb2.AudioAppend) -> None:
        """Does nothing."""

    async def pool(self, request: common_pb2.PoolRequest, model: str, seconds: float) -> common_pb2.PoolResponse:
        raise wrong_runner(model, GENERATE)

    def when_dead(self, callback: Callable[[], None]) -> None:
        """Does nothing: this worker never dies."""


def main() -> None:
    rows = [
        *index_rows(), *queue_rows(), *asyncio.run(core_rows()), *asyncio.run(fleet_rows()),
        *asyncio.run(warm_restart_rows()), *asyncio.run(leaving_rows()),
    ]  # fmt: skip
    print(heading())
    print("| what | figure | goal |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def microseconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> tuple[float, float]:
    """Median and 99th percentile of a call's duration."""
    times = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def resident_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def chains(blocks: int, length: int, source: random.Random) -> list[list[int]]:
    """Prompts with about `blocks` distinct blocks in all, in groups of eight that share their first half."""
    found: list[list[int]] = []
    while blocks > 0:
        head = [source.getrandbits(64) for _ in range(length // 2)]
        found += [head + [source.getrandbits(64) for _ in range(length // 2)] for _ in range(8)]
        blocks -= length // 2 * 9
    return found


def queue_rows() -> list[tuple[str, str, str]]:
    """Cost of the fair queue, which is asked on each frame of a worker while requests wait."""
    queue: FairQueue[None] = FairQueue(10 * _TENANTS, 10**9)
    entries = [queue.push(None, str(number % _TENANTS), 0, 100)[0] for number in range(4 * _TENANTS)]
    middle, late = microseconds(lambda _: queue.peek(), range(1000))
    turn, _ = microseconds(queue.let_in, entries[: 2 * _TENANTS])
    return [
        (f"queue: who goes next of {_TENANTS:,} tenants, p50 / p99 µs", f"{middle:.1f} / {late:.1f}", "< 5"),
        ("the same, a request let in", f"{turn:.1f}", "< 50"),
    ]


def index_rows() -> list[tuple[str, str, str]]:
    source = random.Random(0)
    prompts = chains(1_000_000, 2048, source)
    owners = [source.sample(range(_WORKERS), 2) for _ in prompts]
    before = resident_bytes()
    index = PrefixIndex(4_000_000, time.monotonic)
    workers = [index.join() for _ in range(_WORKERS)]
    everyone = Members.of([worker.bit for worker in workers])
    start = time.perf_counter()
    for prompt, holders in zip(prompts, owners, strict=True):
        for worker in holders:
            index.store(workers[worker], prompt, on_host=False)
    built = time.perf_counter() - start
    # 40 bytes for each key, which existed before here, but not in an index that is filled by events.
    per_block = (resident_bytes() - before) / len(index) + 40
    asked = source.choices(prompts, k=2000)
    ours = microseconds(lambda keys: index.cover(keys, everyone), asked)
    cold = microseconds(
        lambda keys: index.cover(keys, everyone), [[source.getrandbits(64) for _ in range(2048)] for _ in range(500)]
    )
    before = resident_bytes()
    tree = RadixTree()
    for prompt, holders in zip(prompts, owners, strict=True):
        for worker in holders:
            tree.store(worker, prompt)
    tree_per_block = (resident_bytes() - before) / len(index)
    tree_times = "{:.0f} / {:.0f}".format(*microseconds(tree.match, asked[:300]))
    for prompt in asked[:200]:  # held by all workers, each to a different depth
        for blocks in workers:
            index.store(blocks, prompt[: source.randrange(2048)], on_host=False)
    widest = microseconds(lambda keys: index.cover(keys, everyone), source.choices(asked[:200], k=1000))
    return [
        (f"index: blocks known, {_WORKERS} workers", f"{len(index):,} (built in {built:.2f} s)", ""),
        ("index: bytes per block", f"{per_block:.0f} (radix tree {tree_per_block:.0f})", "< 200"),
        ("index: lookup of 32k tokens, p50 / p99 µs", f"{ours[0]:.0f} / {ours[1]:.0f} (tree {tree_times})", "< 200"),
        ("the same, nothing cached", f"{cold[0]:.0f} / {cold[1]:.0f}", "< 200"),
        ("the same, all 64 hold it to different depths", f"{widest[0]:.0f} / {widest[1]:.0f}", "< 200"),
    ]  # fmt: skip


async def core_rows() -> list[tuple[str, str, str]]:
    calm_collector()
    source = random.Random(1)
    clock = asyncio.get_running_loop()
    workers: list[SilentWorker] = []
    core = RouterCore(RouterOptions(), lambda: workers, clock, RouterMetrics(CollectorRegistry()), source)
    index, table, dispatcher = core.index, core.table, core.dispatcher
    workers += [SilentWorker(number, index) for number in range(_WORKERS)]
    session = dispatcher.open_session()
    prompts = chains(100_000, 512, source)
    for prompt in prompts:
        index.store(source.choice(workers).blocks, prompt[: source.randrange(512)], on_host=False)
    generations = [
        common_pb2.Generation(
            request_id=f"r{number}", prompt_token_ids=[7] * 8192, prompt_block_size=_BLOCK_SIZE,
            prompt_block_keys=source.choice(prompts),
        )
        for number in range(3000)
    ]  # fmt: skip
    start = time.perf_counter()
    for number, generation in enumerate(generations):
        dispatcher.start(session, number, generation)
    placed = time.perf_counter() - start
    decisions = [table.decisions.find(f"r{number}") for number in range(2500, 3000)]
    times = [decision.seconds * 1e6 for decision in decisions if decision is not None]
    p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    dispatcher.close_session(session)
    return [
        ("decision for 8k tokens, p50 / p99 µs", f"{p50:.0f} / {p99:.0f}", "< 100 / < 500"),
        ("placements per second, 8k tokens, one core", f"{len(generations) / placed:.0f}", "≥ 1,000"),
        await token_row(dispatcher, table, workers),
    ]


async def fleet_rows() -> list[tuple[str, str, str]]:
    """CPU time of a whole placement, because other processes use the machine too."""
    rows = []
    for count, goal in ((10, ""), (100, ""), (1000, "< 300")):
        source = random.Random(2)
        workers: list[SilentWorker] = []
        clock, metrics = asyncio.get_running_loop(), RouterMetrics(CollectorRegistry())
        core = RouterCore(RouterOptions(), lambda workers=workers: workers, clock, metrics, source)  # type: ignore[misc]
        workers += [SilentWorker(number, core.index) for number in range(count)]
        prompts = chains(50_000, 128, source)
        for prompt in prompts:
            for worker in source.sample(workers, 2):
                core.index.store(worker.blocks, prompt[: source.randrange(128)], on_host=False)
        session = core.dispatcher.open_session()
        times = []
        for number in range(2000):
            generation = common_pb2.Generation(
                prompt_token_ids=[7] * 2048, prompt_block_size=_BLOCK_SIZE, prompt_block_keys=source.choice(prompts)
            )
            start = time.thread_time()
            core.dispatcher.start(session, number, generation)
            times.append((time.thread_time() - start) * 1e6)
        core.dispatcher.close_session(session)
        figure = f"{statistics.median(times):.0f} / {statistics.quantiles(times, n=100)[98]:.0f}"
        rows.append((f"placement of 2k tokens among {count:,} workers, p50 / p99 µs of CPU", figure, goal))
    return rows


async def token_row(
    dispatcher: Dispatcher, table: PlacementTable[Stream], workers: Sequence[Worker]
) -> tuple[str, str, str]:
    """Cost of passing on tokens: frames of 4 streams from each worker, as with 256 streams over 64 workers."""
    session = dispatcher.open_session()
    for number in range(256):
        dispatcher.start(session, number, common_pb2.Generation(prompt_token_ids=[number]))
    frames = []
    for worker in workers:
        frame = engine_pb2.EngineServiceSessionResponse()
        for stream in table.on_worker(worker):
            frame.deltas.add(stream_id=stream.worker_stream_id, token_ids=[5])
        frames.append((worker, frame.SerializeToString(), len(frame.deltas)))
    tokens, rounds = sum(count for _, _, count in frames), 200
    start = time.process_time()
    for _ in range(rounds):
        for worker, data, _ in frames:
            dispatcher.on_frame(worker, engine_pb2.EngineServiceSessionResponse.FromString(data))
        (await session.next_frame()).SerializeToString()
    spent = (time.process_time() - start) * 1e6 / (tokens * rounds)
    dispatcher.close_session(session)
    return (f"CPU µs per streamed token, {tokens} streams, without gRPC", f"{spent:.1f}", "< 15")


async def warm_restart_rows() -> list[tuple[str, str, str]]:
    """How long the event loop is blocked at most while 64 feeds load a snapshot each."""
    source = random.Random(2)
    index = PrefixIndex(4_000_000, time.monotonic)
    each = 1_000_000 // _WORKERS
    messages = []
    for _ in range(_WORKERS):
        batch = engine_pb2.SubscribeKvEventsResponse(sequence=1, epoch="e", is_snapshot=True)
        keys = [source.getrandbits(64) for _ in range(each)]
        batch.events.add(stored=engine_pb2.KvBlocksStored(block_keys=keys, tier=engine_pb2.CACHE_TIER_DEVICE))
        batch.device.num_blocks = each
        for key in keys:
            batch.device.keys_xor ^= key
        messages.append(batch.SerializeToString())

    async def subscribe(data: bytes) -> Any:
        yield engine_pb2.SubscribeKvEventsResponse.FromString(data)
        await asyncio.sleep(3600)

    feeds = [KvFeed(str(number), index, lambda: None) for number in range(_WORKERS)]
    start = time.perf_counter()
    tasks = [
        asyncio.create_task(feed.run(lambda _, data=data: subscribe(data)))  # type: ignore[misc]
        for feed, data in zip(feeds, messages, strict=True)
    ]
    longest = 0.0
    while len(index) < each * _WORKERS:
        before = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - before)
    taken = time.perf_counter() - start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [
        ("a million blocks from 64 snapshots, s", f"{taken:.2f}", "≤ 5"),
        ("longest hold-up of the event loop meanwhile, ms", f"{longest * 1e3:.0f}", ""),
    ]


async def leaving_rows() -> list[tuple[str, str, str]]:
    """CPU time of the event loop's longest turn in two cases.

    A worker that holds a million of 2.5 million blocks leaves, while others' blocks are looked up and reported; and an
    index of a million blocks fills up.
    """
    source = random.Random(3)
    index = PrefixIndex(4_000_000, time.monotonic)
    workers = [index.join() for _ in range(_WORKERS)]
    prompts = [[source.getrandbits(64) for _ in range(500)] for _ in range(5000)]
    for number, prompt in enumerate(prompts):
        index.store(workers[0 if number < 2000 else 1 + number % (_WORKERS - 1)], prompt, on_host=False)
    calm_collector()
    turns: list[float] = []
    load = asyncio.create_task(_look_up_and_tell(index, workers[1:], prompts, turns))
    index.leave(workers[0])
    while index.clean():
        await asyncio.sleep(0.01)
    load.cancel()
    small = PrefixIndex(1_000_000, time.monotonic)
    filling = []
    for prompt in prompts:
        start = time.thread_time()
        small.store(workers[0], prompt, on_host=False)
        filling.append(time.thread_time() - start)
    return [
        ("a worker leaves with a million blocks: longest turn, ms of CPU", f"{max(turns) * 1e3:.1f}", "< 5"),
        ("500 blocks for a full index: at longest, ms of CPU", f"{max(filling) * 1e3:.1f}", "< 5"),
    ]  # fmt: skip


async def _look_up_and_tell(
    index: PrefixIndex, workers: Sequence[WorkerBlocks], prompts: Sequence[Sequence[int]], turns: list[float]
) -> None:
    """Looks up and stores blocks until canceled; `turns` gets the CPU time from each of its turns to the next."""
    source, everyone = random.Random(4), Members.of([worker.bit for worker in workers])
    while True:
        start = time.thread_time()
        index.cover(source.choice(prompts), everyone)
        index.store(source.choice(workers), [source.getrandbits(64) for _ in range(24)], on_host=False)
        await asyncio.sleep(0)
        turns.append(time.thread_time() - start)


if __name__ == "__main__":
    main()
