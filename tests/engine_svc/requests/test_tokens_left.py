"""Requests that may reach a point where no token is left to sample are refused, and no others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.requests.request import RequestLimits
from engine_svc.requests.sampling_validation import check_sampling
from quire.errors import InvalidRequest
from quire.sampling import SamplingParameters

LIMITS = RequestLimits(("tiny",), 3, 64, 20, "fcfs", frozenset({2}))
RUNS = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)


def some_end_leaves_nothing(sampling: SamplingParameters) -> bool:
    """Tries every possible tail of a sequence; tails longer than the start of any bad word change nothing."""
    ends = {2} if sampling.min_tokens and not sampling.ignore_eos else set()
    for length in range(3):
        for tail in itertools.product(range(3), repeat=length):
            bad = {r[-1] for r in sampling.bad_words if len(r) <= length + 1 and tail[length + 1 - len(r) :] == r[:-1]}
            if bad | ends >= set(sampling.allowed_token_ids or range(3)):
                return True
    return False


@given(
    bad_words=st.lists(RUNS, max_size=6).map(tuple), allowed=st.sets(st.integers(0, 2)).map(tuple),
    min_tokens=st.sampled_from([0, 5]), ignore_eos=st.booleans(),
)  # fmt: skip
def test_refused_just_where_nothing_may_be_left(
    bad_words: tuple[tuple[int, ...], ...], allowed: tuple[int, ...], min_tokens: int, ignore_eos: bool
) -> None:
    sampling = SamplingParameters(
        bad_words=bad_words, allowed_token_ids=allowed, min_tokens=min_tokens, ignore_eos=ignore_eos
    )
    if some_end_leaves_nothing(sampling):
        with pytest.raises(InvalidRequest, match="may leave no token"):
            check_sampling(sampling, LIMITS)
    else:
        check_sampling(sampling, LIMITS)
