"""The log line of an engine at work: throughput, sequences and the use of the KV cache."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from engine_svc.requests.outputs import EngineLoad

logger = logging.getLogger(__name__)


async def log_statistics(load: Callable[[], EngineLoad], interval_seconds: float) -> None:
    """Logs a line after each interval in which the engine has run a step, until cancelled."""
    before, then = load(), time.monotonic()
    while True:
        await asyncio.sleep(interval_seconds)
        after, now = load(), time.monotonic()
        if after.step > before.step:
            logger.info(statistics_line(before, after, now - then))
        before, then = after, now


def statistics_line(before: EngineLoad, after: EngineLoad, seconds: float) -> str:
    """What the engine has done between two moments that are `seconds` apart, and its load at the later one.

    The wording is vLLM's, for those who search logs for it.
    """
    old, new = before.counters, after.counters
    parts = [
        f"Avg prompt throughput: {(new.prompt_tokens - old.prompt_tokens) / seconds:.1f} tokens/s",
        f"Avg generation throughput: {(new.generation_tokens - old.generation_tokens) / seconds:.1f} tokens/s",
        f"Running: {after.running_sequences} reqs",
        f"Waiting: {after.waiting_requests} reqs",
    ]
    if after.total_kv_blocks:
        parts.append(f"KV cache usage: {after.used_kv_blocks / after.total_kv_blocks:.1%}")
    if queries := new.prefix_cache_queries - old.prefix_cache_queries:
        parts.append(f"Prefix cache hit rate: {(new.prefix_cache_hits - old.prefix_cache_hits) / queries:.1%}")
    return ", ".join(parts)
