"""The log line of an engine at work."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from engine_svc.core.log_stats import log_statistics, statistics_line
from engine_svc.requests.outputs import EngineLoad
from quire.counters import Counters

IDLE = EngineLoad(
    running_sequences=0, waiting_requests=0, used_kv_blocks=0, total_kv_blocks=200, swapped_sequences=0,
    used_host_blocks=0, total_host_blocks=0, waiting_prefill_tokens=0, step=7, busy=False,
    counters=Counters(prompt_tokens=100, generation_tokens=50, prefix_cache_queries=100, prefix_cache_hits=10),
)  # fmt: skip
AT_WORK = replace(
    IDLE, running_sequences=3, waiting_requests=2, used_kv_blocks=5, step=9,
    counters=Counters(prompt_tokens=150, generation_tokens=175, prefix_cache_queries=140, prefix_cache_hits=20),
)  # fmt: skip


def test_it_covers_the_interval() -> None:
    assert statistics_line(IDLE, AT_WORK, 10.0) == (
        "Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 12.5 tokens/s, Running: 3 reqs, "
        "Waiting: 2 reqs, KV cache usage: 2.5%, Prefix cache hit rate: 25.0%"
    )


def test_what_was_not_used_is_left_out() -> None:
    pooling = replace(AT_WORK, total_kv_blocks=0)
    assert statistics_line(pooling, pooling, 1.0).endswith("Running: 3 reqs, Waiting: 2 reqs")


@pytest.mark.asyncio
async def test_an_idle_engine_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The engine runs steps in one interval of three."""
    told = iter([IDLE, IDLE, AT_WORK, AT_WORK])
    all_told = asyncio.Event()

    def load() -> EngineLoad:
        found = next(told, None)
        if found is None:
            all_told.set()
        return found or AT_WORK

    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(log_statistics(load, 0.001))
        await all_told.wait()
        task.cancel()
    assert [record.getMessage()[:21] for record in caplog.records] == ["Avg prompt throughput"]
