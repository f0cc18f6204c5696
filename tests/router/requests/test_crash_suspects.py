"""Requests suspected of crashing workers, on a clock controlled by the test."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from quire.errors import Internal
from quire.v1 import common_pb2
from router.requests.crash_suspects import CrashSuspects
from router.workers.assignment import Assignment

numbers = itertools.count(1)


@dataclass
class Clock:
    now: float = 1000.0

    def time(self) -> float:
        return self.now


def same(seed: int | None = None, prompt: int = 1, **fields: Any) -> Assignment:
    """A request that differs from others only in what differs between any two attempts."""
    sampling = common_pb2.SamplingParams(seed=seed, logit_bias={1: 1.0, 2: 2.0})
    name = str(next(numbers))
    generation = common_pb2.Generation(
        prompt_token_ids=[prompt], sampling=sampling, request_id=name, timeout_ms=int(name), **fields
    )
    return Assignment(generation, generation.model, 0 if seed is None else seed)


def test_a_request_that_ran_at_two_crashes_is_kept_out_for_a_while() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)  # type: ignore[arg-type]  # only asks for the time
    suspects.check(same())
    assert not suspects.record_crash(same())
    suspects.check(same())
    assert not suspects.record_crash(same(prompt=2))
    assert suspects.record_crash(same())
    with pytest.raises(Internal, match=r"another 30 s\."):
        suspects.check(same())
    for other in (same(prompt=2), same(seed=1), same(tenant="somebody"), same(cache_salt="salt"), same(model="other")):
        suspects.check(other)
    clock.now += 31
    suspects.check(same())
    assert suspects.record_crash(same())
    with pytest.raises(Internal, match=r"another 60 s\."):
        suspects.check(same())
    clock.now += 1201
    suspects.check(same())
    assert not len(suspects)
    for number in range(5000):
        suspects.record_crash(same(prompt=number))
    assert len(suspects) <= 4096


def test_a_seed_counts_where_callers_cannot_be_told_apart() -> None:
    suspects = CrashSuspects(Clock())  # type: ignore[arg-type]  # only asks for the time
    for seed in range(4):
        assert not suspects.record_crash(same(seed))
    assert not suspects.record_crash(same(7, tenant="t"))
    assert suspects.record_crash(same(8, tenant="t"))
    with pytest.raises(Internal):
        suspects.check(same(9, tenant="t"))


def test_a_request_that_begins_to_answer_is_innocent() -> None:
    suspects = CrashSuspects(Clock())  # type: ignore[arg-type]  # only asks for the time
    assert not suspects.record_crash(same())
    suspects.clear(same())
    assert not suspects.record_crash(same())
