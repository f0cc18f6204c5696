"""Limits of a named key, with a clock that the tests advance."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.requests.named_key import NamedKey
from gateway.requests.token_bucket import TokenBucket
from quire.api_keys import ApiKey
from quire.errors import InvalidRequest, RateLimited, Unavailable
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def key_of(clock: ManualClock, **limits: Any) -> NamedKey:
    return NamedKey(ApiKey("acme", key="secret", **limits), clock)


def test_a_bucket_refills_evenly_up_to_a_minutes_worth(clock: ManualClock) -> None:
    bucket = TokenBucket(120, clock)
    bucket.take(120)
    assert (bucket.remaining, bucket.seconds_until(1), bucket.seconds_until_full) == (0, 0.5, 60)
    clock.seconds += 10
    assert (bucket.remaining, bucket.seconds_until(20), bucket.seconds_until(50)) == (20, 0, 15)
    bucket.take(50)
    assert (bucket.remaining, bucket.seconds_until(1)) == (0, 15.5)  # in debt
    clock.seconds += 1000
    assert (bucket.remaining, bucket.seconds_until_full) == (120, 0)
    bucket.take(-7)
    assert bucket.remaining == 120


def test_requests_per_minute(clock: ManualClock) -> None:
    key = key_of(clock, requests_per_minute=2)
    for remaining in ("1", "0"):
        key.admit().end()
        assert key.headers["x-ratelimit-remaining-requests"] == remaining
    with pytest.raises(RateLimited, match=r"its limit requests_per_minute is 2\. Try again in 30 s") as caught:
        key.admit()
    assert caught.value.retry_after_seconds == 30
    clock.seconds += 30
    key.admit()
    assert (key.requests, dict(key.refused)) == (3, {"requests": 1})
    assert key.headers == {
        "x-ratelimit-limit-requests": "2", "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "60.000s",
    }  # fmt: skip


def test_requests_run_until_all_their_parts_have_ended(clock: ManualClock) -> None:
    key = key_of(clock, max_concurrent_requests=1)
    admission = key.admit()
    part = admission.reserve(10, 5)
    admission.end()  # its HTTP answer
    with pytest.raises(RateLimited, match="already has 1 requests in progress: its limit max_concurrent_requests is 1"):
        key.admit()
    part.settle(10, 3)
    key.admit()
    assert (key.prompt_tokens, key.generation_tokens, key.headers) == (10, 3, {})


def test_tokens_are_reserved_and_given_back(clock: ManualClock) -> None:
    key = key_of(clock, tokens_per_minute=600)
    first = key.admit().reserve(100, 300)
    assert key.headers["x-ratelimit-remaining-tokens"] == "200"
    second = key.admit()
    with pytest.raises(RateLimited, match="has 200 tokens left, and the request may use 250") as caught:
        second.reserve(50, 200)
    assert caught.value.retry_after_seconds == 5
    second.end()
    first.settle(100, 20)
    assert key.headers["x-ratelimit-remaining-tokens"] == "480"
    key.admit().reserve(50, 200)
    assert (key.prompt_tokens, key.generation_tokens, dict(key.refused)) == (100, 20, {"tokens": 1})


@pytest.mark.parametrize(("prompt", "output", "parameter"), [(10, 600, "max_tokens"), (601, 1, "prompt")])
def test_what_never_fits_is_the_requests_fault(clock: ManualClock, prompt: int, output: int, parameter: str) -> None:
    with pytest.raises(InvalidRequest, match="limit tokens_per_minute, 600, ever allows") as caught:
        key_of(clock, tokens_per_minute=600).admit().reserve(prompt, output)
    assert caught.value.parameter == parameter


def test_without_max_tokens_no_more_is_reserved_than_a_bucket_holds(clock: ManualClock) -> None:
    key = key_of(clock, tokens_per_minute=600)
    reservation = key.admit().reserve(10, 100_000, may_shrink=True)
    with pytest.raises(RateLimited, match="has used up its tokens"):
        key.admit()
    reservation.settle(10, 1000)  # more than was reserved: it is in debt
    clock.seconds += 41
    with pytest.raises(RateLimited):
        key.admit()
    clock.seconds += 0.2
    key.admit()


def test_a_request_that_has_begun_is_not_refused(clock: ManualClock) -> None:
    """The pieces of a long recording are parts of one request."""
    admission = key_of(clock, tokens_per_minute=100).admit()
    parts = [admission.reserve(40, 40) for _ in range(3)]
    assert admission.key.headers["x-ratelimit-reset-tokens"] == "144.000s"
    for part in parts:
        part.settle(40, 0)
    assert admission.key.headers["x-ratelimit-reset-tokens"] == "72.000s"


def test_a_failed_request_without_outputs_has_used_nothing(clock: ManualClock) -> None:
    key = key_of(clock, tokens_per_minute=100)
    with pytest.raises(Unavailable), key.admit().reserved(60):
        raise Unavailable("No worker is ready.")
    with key.admit().reserved(60):
        pass
    assert (key.prompt_tokens, key.headers["x-ratelimit-remaining-tokens"]) == (60, "40")


def test_new_limits_do_not_refill(clock: ManualClock) -> None:
    key = key_of(clock, requests_per_minute=2)
    key.admit()
    key.change(ApiKey("acme", key="secret", requests_per_minute=60, tokens_per_minute=100))
    assert key.headers["x-ratelimit-remaining-requests"] == "1"
    assert key.headers["x-ratelimit-remaining-tokens"] == "100"
    key.change(ApiKey("acme", key="secret"))
    assert key.headers == {}


def test_priorities(clock: ManualClock) -> None:
    default, urgent, patient = (key_of(clock, **limits) for limits in ({}, {"max_priority": -5}, {"max_priority": 3}))
    assert [default.priority(asked) for asked in (0, 7)] == [0, 7]
    assert [urgent.priority(asked) for asked in (-5, 0, 7)] == [-5, 0, 7]
    assert [patient.priority(asked) for asked in (0, 3, 7)] == [3, 3, 7]
    for key, asked in ((default, -1), (urgent, -6), (patient, 2), (patient, -1)):
        with pytest.raises(InvalidRequest, match=rf"priority is {asked}, .* ask for {key.entry.max_priority} or more"):
            key.priority(asked)
    assert dict(patient.refused) == {"priority": 2}
