"""Trials of `benchmarks.at_work` with many streams at once, workers that die, and shutdown."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.at_work_stack import Answer, Stack, Unexpected, complete, expect, until
from benchmarks.processes import services
from benchmarks.servers import family

_CANCELLED = 4  # streams
_OF_LIVE_REQUESTS = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_SETTLE_SECONDS = 10.0  # for metrics, which workers report several times a second
_HEARD_SECONDS = 1.0  # time within which the gateway hears from all workers
_RESTART_SECONDS = 90.0
_STOP_SECONDS = 30.0
_UNDER_WAY = 4  # tokens


def _prompts(name: str, count: int) -> list[str]:
    """Prompts of about a hundred tokens, which differ from the first token on."""
    return [f"{number} {name}: " + "some hundred bytes that are to be gone on with, " * 2 for number in range(count)]


async def _streams(
    stack: Stack, name: str, tokens: int, on_tokens: Callable[[Answer], None] = lambda _: None
) -> list[Answer]:
    """Runs all streams at once and checks that all are complete."""
    prompts = _prompts(name, stack.scale.streams)
    answers = await asyncio.gather(*(stack.stream(prompt, tokens, on_tokens) for prompt in prompts))
    complete(answers, tokens)
    return answers


async def many_streams(stack: Stack) -> str:
    """Many streams at once."""
    tokens, begin = stack.scale.tokens, time.monotonic()
    answers = await _streams(stack, "many", tokens)
    seconds = time.monotonic() - begin
    return f"{len(answers)} streams of {tokens} tokens, {len(answers) * tokens / seconds:,.0f} tokens/s"


async def cancelled_streams(stack: Stack) -> str:
    """Some streams are aborted because their clients leave; the others go on."""
    under_way, tokens = asyncio.Event(), stack.scale.tokens
    more = stack.scale.max_model_len * 3 // 4  # enough not to finish before the clients leave
    await asyncio.sleep(_HEARD_SECONDS)  # until metrics of earlier requests have arrived
    before = await stack.metric("vllm:generation_tokens_total")
    leaving = [
        asyncio.create_task(stack.stream(prompt, more, lambda answer: _tell(under_way, answer)))
        for prompt in _prompts("leaving", _CANCELLED)
    ]
    staying = [asyncio.create_task(stack.stream(prompt, tokens)) for prompt in _prompts("staying", _CANCELLED)]
    await _are_under_way(under_way, [*leaving, *staying])
    for task in leaving:
        task.cancel()
    ended = await asyncio.gather(*leaving, return_exceptions=True)
    expect(all(isinstance(each, asyncio.CancelledError) for each in ended), f"some had ended before: {ended}")
    complete(await asyncio.gather(*staying), tokens)
    await asyncio.sleep(_HEARD_SECONDS)

    async def is_idle() -> bool:
        return not any([await stack.metric(f"vllm:{name}") for name in _OF_LIVE_REQUESTS])

    await until(is_idle, _SETTLE_SECONDS, f"one of {', '.join(_OF_LIVE_REQUESTS)} is not 0")
    generated = await stack.metric("vllm:generation_tokens_total") - before
    most = _CANCELLED * (tokens + more)
    expect(generated < most, f"all {most} tokens were generated")
    return f"{_CANCELLED} left, {_CANCELLED} completed; {generated:.0f} tokens generated of {most}, none runs or waits"


async def _are_under_way(event: asyncio.Event, streams: Sequence[asyncio.Task[Any]]) -> None:
    """Waits for the event; a stream that fails before it raises its error."""
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait([waiter, *streams], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    for stream in streams:
        if stream.done():
            stream.result()


def _tell(event: asyncio.Event, answer: Answer) -> None:
    if len(answer.ids) >= _UNDER_WAY:
        event.set()


async def preempted_streams(stack: Stack) -> str:
    """More streams than the KV cache holds: sequences are preempted, and resume later."""
    before, tokens = await stack.metric("vllm:num_preemptions_total"), stack.scale.max_model_len // 2
    answers = await _streams(stack, "many", tokens)

    async def are_told() -> bool:
        return await stack.metric("vllm:num_preemptions_total") > before

    await until(are_told, _SETTLE_SECONDS, "vllm:num_preemptions_total has not grown")
    count = await stack.metric("vllm:num_preemptions_total") - before
    return f"{len(answers)} streams of {tokens} tokens; {count:.0f} preemptions"


async def host_tier(stack: Stack) -> str:
    """Blocks evicted from the device are loaded from host memory when they are needed again."""
    kept = await stack.metric("quire_engine_host_blocks_used", "engine")
    expect(kept > 0, "the host's memory keeps no block")
    before = await stack.metric("quire_engine_external_cache_hits_total", "engine")
    await many_streams(stack)  # their prompts have been evicted by others
    found = await stack.metric("quire_engine_external_cache_hits_total", "engine") - before
    expect(before + found > 0, "no token was found in the host's memory")
    return f"{kept:.0f} blocks kept there, {before:.0f} tokens found there, {found:.0f} more by the same streams again"


async def both_workers(stack: Stack) -> str:
    """Each worker gets some requests; maybe not at first, if its first steps were slow."""
    before, begin = await _generated(stack), time.monotonic()
    for number in itertools.count(1):
        # Other prompts each time: the router sends cached prompts to the worker that has them.
        await _streams(stack, f"both {number} after {before}", stack.scale.tokens)
        shares = [now - then for now, then in zip(await _generated(stack), before, strict=True)]
        if all(shares):
            break
        expect(time.monotonic() - begin < _SETTLE_SECONDS, f"{shares} tokens were generated, of {number} times")
    return f"{shares[0]:.0f} and {shares[1]:.0f} tokens generated"


async def killed_worker(stack: Stack) -> str:
    """Streams of a killed worker continue on the other one."""
    tokens = min(4 * stack.scale.tokens, stack.scale.max_model_len // 2)  # enough not to finish before it is killed
    undisturbed = await _streams(stack, "killed", tokens)
    moved = await stack.metric("quire_router_migrations_total", "router")
    all_begun, begun = asyncio.Event(), set[int]()

    def tell(answer: Answer) -> None:
        begun.add(id(answer))
        if len(begun) == stack.scale.streams:
            all_begun.set()

    streams = asyncio.create_task(_streams(stack, "killed", tokens, tell))
    await _are_under_way(all_begun, [streams])
    await _kill_the_busier(stack)
    answers = await streams
    moved = await stack.metric("quire_router_migrations_total", "router") - moved
    expect(moved > 0, "no stream moved")
    equal = sum(one.ids == other.ids for one, other in zip(undisturbed, answers, strict=True))
    words = f"{moved:.0f} of {len(answers)} streams moved, all have their tokens, {equal} those of undisturbed streams"
    expect(equal == len(answers) or not stack.is_invariant, words)
    return words


async def _kill_the_busier(stack: Stack) -> None:
    names = [f"engine-{rank}" for rank in range(2)]
    running = await asyncio.gather(*(stack.metric("quire_engine_running_sequences", name) for name in names))
    expect(any(running), "all streams were done before an engine could be killed")
    os.kill(_engine_of(stack, running.index(max(running))), signal.SIGKILL)


def _engine_of(stack: Stack, rank: int) -> int:
    """The process id of an engine, by its data-parallel rank."""
    for pid in services(stack.server.process.pid)["engine"]:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if command[command.index(b"--data-parallel-rank") + 1] == str(rank).encode():
            return pid
    raise Unexpected(f"there is no engine of rank {rank}")


async def restarted_worker(stack: Stack) -> str:
    """The killed worker is back, and gets requests."""

    async def is_back() -> bool:
        return await stack.metric("quire_router_workers", "router", state="ready") == 2

    seconds = await until(is_back, _RESTART_SECONDS, "the router has not two workers that are ready")
    expect(len(services(stack.server.process.pid)["engine"]) == 2, "there are not two processes")
    return f"ready {seconds:.1f} s after the streams were done; {await both_workers(stack)}"


async def _generated(stack: Stack) -> list[float]:
    return [await stack.metric("quire_engine_generation_tokens_total", f"engine-{rank}") for rank in range(2)]


async def stopped(stack: Stack) -> str:
    """SIGTERM lets a stream finish, then all processes end."""
    under_way, process, tokens = asyncio.Event(), stack.server.process, stack.scale.tokens
    stream = asyncio.create_task(stack.stream("the last one", tokens, lambda answer: _tell(under_way, answer)))
    await _are_under_way(under_way, [stream])
    pids = family(process.pid)
    begin = time.monotonic()
    process.terminate()
    complete([await stream], tokens)

    async def has_ended() -> bool:
        return process.poll() is not None

    await until(has_ended, _STOP_SECONDS, "quire serve has not ended")
    seconds = time.monotonic() - begin

    async def are_gone() -> bool:
        return not _alive(pids)

    await until(are_gone, 5.0, "processes are left")
    expect(process.returncode == 0, f"it ended with status {process.returncode}")
    return f"the last stream had all its tokens; {len(pids)} processes ended within {seconds:.1f} s"


def _alive(pids: Sequence[int]) -> list[int]:
    """The processes that have not ended; a zombie that its new parent has not reaped yet counts as ended."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found
