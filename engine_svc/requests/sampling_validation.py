"""Validates a request's sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine_svc.requests.request import RequestLimits
from quire.bounds import (
    LOGIT_BIAS_BOUND,
    MANY_LOGPROBS,
    MAX_BAD_WORD_RUNS,
    MAX_BAD_WORD_TOKENS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_LOGITS_PROCESSORS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_QUALNAME_LENGTH,
    MAX_STEP_LOGPROB_ENTRIES,
    MAX_STOP_TOKEN_IDS,
    MAX_XARGS_BYTES,
    Bound,
    check_count,
    check_json,
    check_token_ids,
)
from quire.errors import InvalidRequest
from quire.sampling import SAMPLING_BOUNDS, SamplingParameters, Xargs


def check_sampling(sampling: SamplingParameters, limits: RequestLimits) -> None:
    """Checks all sampling parameters.

    Raises:
        InvalidRequest: a parameter is out of bounds, or together they may leave no token to sample.
    """
    for name, bound in SAMPLING_BOUNDS.items():
        value = getattr(sampling, name)
        if value is not None:
            bound.check(name, value)
    check_count("stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_TOKEN_IDS, "entries")
    check_count("logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIAS_ENTRIES, "entries")
    check_token_ids("logit_bias", [token_id for token_id, _ in sampling.logit_bias], limits.vocab_size)
    for _, bias in sampling.logit_bias:
        LOGIT_BIAS_BOUND.check("logit_bias", bias)
    check_token_ids("stop_token_ids", sampling.stop_token_ids, limits.vocab_size)
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None:
            Bound(0, min(limits.max_logprobs, limits.vocab_size)).check(name, count)
    if sampling.n * num_many_logprobs(sampling) > MAX_STEP_LOGPROB_ENTRIES:
        raise InvalidRequest(
            f"logprobs is {sampling.logprobs} with n {sampling.n}; at most {MAX_STEP_LOGPROB_ENTRIES} alternatives "
            "are returned in a step. Lower n, or ask for fewer.",
            parameter="n",
        )
    check_count("logprob_token_ids", len(sampling.logprob_token_ids), MAX_LOGPROB_TOKEN_IDS, "entries")
    check_token_ids("logprob_token_ids", sampling.logprob_token_ids, limits.vocab_size)
    if sampling.logprob_token_ids and sampling.logprobs is None:
        raise InvalidRequest("logprob_token_ids needs logprobs to be set.", parameter="logprob_token_ids")
    _check_processors(sampling)
    if sampling.repetition_detection is not None:
        sampling.repetition_detection.check("repetition_detection")
    if sampling.reasoning is not None:
        sampling.reasoning.check("reasoning", limits.vocab_size)
    elif sampling.thinking_token_budget is not None:
        raise InvalidRequest("thinking_token_budget needs reasoning.", parameter="thinking_token_budget")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens} and max_tokens is {sampling.max_tokens}; min_tokens must not be "
            "larger.",
            parameter="min_tokens",
        )
    check_count("allowed_token_ids", len(sampling.allowed_token_ids), limits.vocab_size, "entries")
    check_token_ids("allowed_token_ids", sampling.allowed_token_ids, limits.vocab_size)
    _check_bad_words(sampling.bad_words, limits)
    _check_watermark(sampling, limits)
    _check_tokens_left(sampling, limits)


def _check_bad_words(bad_words: tuple[tuple[int, ...], ...], limits: RequestLimits) -> None:
    check_count("bad_words", len(bad_words), MAX_BAD_WORD_RUNS, "entries")
    for run in bad_words:
        Bound(1, MAX_BAD_WORD_TOKENS).check("bad_words", len(run))
        check_token_ids("bad_words", run, limits.vocab_size)


def _check_watermark(sampling: SamplingParameters, limits: RequestLimits) -> None:
    if not sampling.watermarking:
        return
    why = "" if limits.has_watermark else "the server marks nothing: it needs --watermark-config"
    if not why and sampling.is_greedy:
        why = "greedy outputs cannot be marked: raise temperature above 0"
    if why:
        raise InvalidRequest(f"watermarking is true, but {why}. Or leave it out.", parameter="watermarking")


def num_many_logprobs(sampling: SamplingParameters) -> int:
    """Number of logprobs per token if it is very large; else 0."""
    count = 0 if sampling.logprob_token_ids else sampling.logprobs or 0
    return count if count > MANY_LOGPROBS else 0


def _check_processors(sampling: SamplingParameters) -> None:
    check_count("vllm_xargs", len(sampling.vllm_xargs), MAX_XARGS_BYTES, "bytes of JSON")
    check_json("vllm_xargs", sampling.vllm_xargs or b"{}", Xargs)
    check_count("logits_processors", len(sampling.logits_processors), MAX_LOGITS_PROCESSORS, "entries")
    for call in sampling.logits_processors:
        check_count("logits_processors", len(call.qualname), MAX_QUALNAME_LENGTH, "characters in a name")
        check_count("logits_processors", len(call.args) + len(call.kwargs), MAX_XARGS_BYTES, "bytes of JSON")
        check_json("logits_processors", call.args, list[Any])
        check_json("logits_processors", call.kwargs, dict[str, Any])


def _check_tokens_left(sampling: SamplingParameters, limits: RequestLimits) -> None:
    """Checks that at least one token can always be sampled next, whatever was generated before.

    Raises:
        InvalidRequest: that is not certain.
    """
    ending: set[int] = set()
    if sampling.min_tokens:
        ending = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else limits.eos_token_ids)}
    allowed = sampling.allowed_token_ids or range(limits.vocab_size)
    if not ending.union(run[-1] for run in sampling.bad_words).issuperset(allowed):
        return  # the usual case
    if not any(forbidden.issuperset(allowed) for forbidden in _forbidden_together(sampling.bad_words, ending)):
        return
    parameter = "allowed_token_ids" if sampling.allowed_token_ids else "bad_words"
    raise InvalidRequest(
        f"{parameter} may leave no token to sample: every allowed token would complete a bad word, or end the "
        "sequence before min_tokens. Allow more tokens, or lower min_tokens.",
        parameter=parameter,
    )


def _forbidden_together(bad_words: Sequence[tuple[int, ...]], ending: set[int]) -> Iterator[set[int]]:
    """Yields the sets of tokens that may be forbidden at the same time.

    There is one set for each beginning of a bad word with which the known tokens may end: it contains the last token of
    every bad word whose own beginning is a suffix of that, besides the ending tokens.
    """
    for beginning in {(), *(run[:-1] for run in bad_words)}:
        yield ending.union(run[-1] for run in bad_words if _ends_with(beginning, run[:-1]))


def _ends_with(run: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return len(end) <= len(run) and run[len(run) - len(end) :] == end
