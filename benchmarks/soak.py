"""Hours of mixed load with faults, and whether anything leaks: `python -m benchmarks.soak --minutes 60`.

Two engine workers, two routers, two tokenizer services and a gateway serve users who chat, stream, sample, force JSON,
leave in the middle and send nonsense, through OpenAI's own client. Meanwhile, a fault hits one of the processes every
few seconds. Checked is that

* every request ends in time as it should: nonsense with 400, and no other is refused or fails;
* a request that was answered before gets the same answer again, sampled ones by their seeds, whatever happened;
* once users pause, no request runs or waits anywhere, and no KV block is held for one;
* memory, open files and threads of processes that live on do not grow.

Prints what each process holds after each pause, and how requests ended; the exit status is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import Service, engines, gateway, router, tokenizer
from benchmarks.machine import heading
from benchmarks.router_client import connect
from benchmarks.soak_users import Users

_MODEL = Path("demo_model/quire-demo")
_ENGINE = ("--kv-cache-memory-bytes", "64M", "--max-num-seqs", "16")
_FAULT_SECONDS = (4.0, 12.0)  # between two faults
_STOPPED_SECONDS = 5.0
_COLUMNS = ("after, min", "requests", "faults", "process", "memory, MiB", "open files", "threads")
# Memory may grow by this much over the whole time: caches fill, allocators settle.
_MOST_GROWTH_MEGABYTES = 32
_MOST_GROWTH_FILES = 8
_MOST_GROWTH_THREADS = 4


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    pid: int
    megabytes: float
    files: int
    threads: int


def held_by(pid: int) -> Held:
    """What a process holds now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Held(pid, int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"]))


class Stack:
    """All processes, and the faults that hit them."""

    def __init__(
        self, workers: Sequence[Service], routers: Sequence[Service], tokenizers: Sequence[Service], front: Service
    ) -> None:
        self.workers, self.routers, self.front = workers, routers, front
        self._victims = [*workers, *routers, *tokenizers]
        self.faults: Counter[str] = Counter()

    @property
    def services(self) -> list[Service]:
        return [*self._victims, self.front]

    async def strike(self, source: random.Random) -> None:
        """Hits one process, and waits until it is back."""
        kind = source.choices(("kill", "stop", "terminate"), (3, 2, 2))[0]
        victim = source.choice(self._victims)
        self.faults[f"{kind} {victim.name}"] += 1
        if kind == "stop":
            victim.signal(signal.SIGSTOP)
            await asyncio.sleep(_STOPPED_SECONDS)
            victim.signal(signal.SIGCONT)
        else:
            victim.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            await asyncio.to_thread(victim.restart)
            await asyncio.to_thread(victim.wait_listening)
        await self.ready()

    async def ready(self) -> None:
        for each in self.routers:
            async with connect(each.address) as client:
                await client.wait_ready(len(self.workers))

    async def leftovers(self) -> list[str]:
        """What is still held for requests although no user has one."""
        found = []
        await self.ready()
        for each in self.routers:
            async with connect(each.address) as client:
                if blocks := await client.blocks_left():
                    found.append(f"{each.name} says that {blocks} KV blocks are held")
                for worker in await client.workers():
                    load = worker.load
                    if load.running_sequences or load.waiting_requests:
                        found.append(f"{worker.address} runs {load.running_sequences}, {load.waiting_requests} wait")
        return found


async def _soak(stack: Stack, arguments: argparse.Namespace) -> list[str]:
    source, wrong = random.Random(arguments.seed), list[str]()
    seen: dict[str, list[Held]] = {}  # by address, what the process that is there now held after each pause
    begun = time.monotonic()
    async with Users(stack.front.port, arguments.users, arguments.seed) as users:
        await stack.ready()
        for period in range(arguments.periods + 1):  # the first one warms up, without faults
            until = time.monotonic() + arguments.minutes * 60 / (arguments.periods + 1)
            async with asyncio.TaskGroup() as group:
                group.create_task(users.run(until))
                while period and time.monotonic() < until:
                    await asyncio.sleep(source.uniform(*_FAULT_SECONDS))
                    await stack.strike(source)
            wrong += users.wrong
            users.wrong.clear()
            wrong += await stack.leftovers()
            for each in stack.services:
                held = held_by(each.process.pid)
                print(_row((time.monotonic() - begun) / 60, users.requests, stack.faults.total(), each.name, held))
                lives_on = each.address in seen and seen[each.address][0].pid == held.pid
                seen[each.address] = [*seen[each.address], held] if lives_on else [held]
            sys.stdout.flush()
        wrong += [each for address, held in seen.items() for each in _growth(address, held)]
        print(f"\nfaults: {dict(stack.faults)}\nanswers: {dict(users.ends)}")
    return wrong


def _growth(address: str, seen: Sequence[Held]) -> list[str]:
    """What has grown too much since the second pause that the process saw: by the first, it may have just begun."""
    if len(seen) < 3:
        return []
    before, now = seen[1], seen[-1]
    limits = (
        ("MiB", now.megabytes - before.megabytes, _MOST_GROWTH_MEGABYTES),
        ("open files", now.files - before.files, _MOST_GROWTH_FILES),
        ("threads", now.threads - before.threads, _MOST_GROWTH_THREADS),
    )
    return [f"{address} grew by {grown:.0f} {what}" for what, grown, most in limits if grown > most]


def _row(minutes: float, requests: int, faults: int, name: str, held: Held) -> str:
    return f"| {minutes:.1f} | {requests} | {faults} | {name} | {held.megabytes:.0f} | {held.files} | {held.threads} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--periods", type=int, default=4, help="pauses in which all processes are looked at")
    parser.add_argument("--users", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(heading())
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|", flush=True)
    with ExitStack() as stack:
        workers = stack.enter_context(engines(_MODEL, 2, _ENGINE))
        routers = [stack.enter_context(router(workers, ())) for _ in range(2)]
        tokenizers = [stack.enter_context(tokenizer(_MODEL)) for _ in range(2)]
        front = stack.enter_context(gateway(routers, tokenizers))
        wrong = asyncio.run(_soak(Stack(workers, routers, tokenizers, front), arguments))
    for each, count in Counter(wrong).most_common():
        print(f"WRONG, {count} times: {each}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
