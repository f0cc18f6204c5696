"""Checks of fields shared by the generating endpoints. Engines check again; here errors use the HTTP field names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gateway.protocol.common import GenerationFields
from gateway.requests.refused import check_refused
from gateway.requests.served_model import ServedModel
from quire.bounds import (
    CACHE_SALT_PATTERN,
    LOGIT_BIAS_BOUND,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_CACHE_SALT_LENGTH,
    MAX_CALLER_NAME_LENGTH,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    PRIORITY_BOUND,
    Bound,
    check_count,
    check_token_ids,
    is_greedy,
)
from quire.errors import InvalidRequest
from quire.rpc.context import is_request_id
from quire.sampling import SAMPLING_BOUNDS

_SHOWN = 50  # maximum characters of a key in messages
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
_CACHE_SALT = re.compile(CACHE_SALT_PATTERN)


def check_generation(body: GenerationFields, model: ServedModel) -> None:
    """Rejects requests that no engine would run.

    Raises:
        InvalidRequest: names the field, its value and the fix.
    """
    check_refused(body)
    for name, bound in SAMPLING_BOUNDS.items():
        value = getattr(body, name)
        # vLLM's clients write -1 for "all tokens".
        if value is not None and not (name == "top_k" and value == -1):
            bound.check(name, value)
    PRIORITY_BOUND.check("priority", body.priority)
    if (body.n or 1) > 1 and not body.use_beam_search and body.temperature is not None and is_greedy(body.temperature):
        raise InvalidRequest(
            f"n is {body.n} with temperature {body.temperature:g}: below 1e-5 all choices are the same. Leave n out "
            "or raise the temperature.",
            parameter="n",
        )
    check_logprobs("prompt_logprobs", body.prompt_logprobs, model)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs are not available in streams.", parameter="prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", parameter="stream_options")
    if body.stream_interval is not None:
        Bound(1, 2**31 - 1).check("stream_interval", body.stream_interval)
    if body.repetition_detection is not None:
        body.repetition_detection.check("repetition_detection")
    _check_lists(body, model.vocab_size)
    check_cache_salt(body.cache_salt)
    for name in ("session_id", "prompt_cache_key", "user"):
        check_count(name, len(getattr(body, name) or ""), MAX_CALLER_NAME_LENGTH, "characters")
    check_request_id(body.request_id)


def check_request_id(request_id: str | None) -> None:
    """
    Raises:
        InvalidRequest: it is malformed.
    """
    if request_id is not None and not is_request_id(request_id):
        raise InvalidRequest("request_id must be 1 to 128 of the characters A-Z a-z 0-9 . _ -", parameter="request_id")


def check_token_offsets(body: GenerationFields, *, renders: bool) -> None:
    """
    Raises:
        InvalidRequest: token offsets are wanted of a route that does not return them.
    """
    if body.return_token_offsets and not renders:
        raise InvalidRequest(
            "return_token_offsets is for /v1/completions/render and /v1/chat/completions/render, whose answers have "
            "token_offsets: send the request there, or leave it out.",
            parameter="return_token_offsets",
        )


def check_truncation(limit: int) -> None:
    """
    Raises:
        InvalidRequest: the limit is neither -1 nor positive.
    """
    if limit != -1 and limit < 1:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {limit}; it must be -1 or positive.", parameter="truncate_prompt_tokens"
        )


def check_cache_salt(salt: str | None) -> None:
    """
    Raises:
        InvalidRequest: it is empty or too long, or has characters that are unsafe in file names built from it.
    """
    if salt is not None and not _CACHE_SALT.fullmatch(salt):
        raise InvalidRequest(
            f"cache_salt is {salt[:_SHOWN]!r}; it must have 1 to {MAX_CACHE_SALT_LENGTH} characters, and none of @ / "
            "\\ NUL.",
            parameter="cache_salt",
        )


def check_choices(prompts: int, n: int | None, limit: int) -> None:
    """Rejects too many choices before anything is allocated for them.

    Raises:
        InvalidRequest: there are no prompts, too many prompts, or too many choices.
    """
    n = n or 1
    if not prompts:
        raise InvalidRequest(
            f"prompt is empty; a request must have 1 to {limit} entries (--max-choices-per-request).",
            parameter="prompt",
        )
    if prompts * n > limit:
        raise InvalidRequest(
            f"{prompts} prompts with n {n} ask for {prompts * n} choices; a request may have 1 to {limit} "
            "(--max-choices-per-request): send fewer prompts at a time, or lower n.",
            parameter="n" if prompts <= limit and n > 1 else "prompt",
        )


def check_logprobs(name: str, value: int | None, model: ServedModel) -> None:
    """
    Raises:
        InvalidRequest: it asks for more alternatives than the server provides.
    """
    most = model.max_logprobs
    if value is None or 0 <= value <= most or (value == -1 and most >= model.vocab_size):
        return
    every = ", or -1 for all" if most >= model.vocab_size else ""
    raise InvalidRequest(f"{name} is {value}; it must be between 0 and {most}{every}.", parameter=name)


def num_alternatives(value: int | None, model: ServedModel) -> int | None:
    """Returns the number of alternatives, already checked: -1 means the whole vocabulary."""
    return model.vocab_size if value == -1 else value


def _check_lists(body: GenerationFields, vocab_size: int) -> None:
    stops = stop_strings(body)
    check_count("stop", len(stops), MAX_STOP_STRINGS, "strings")
    if any(not 1 <= len(stop) <= MAX_STOP_STRING_LENGTH for stop in stops):
        raise InvalidRequest(
            f"stop must only contain strings of 1 to {MAX_STOP_STRING_LENGTH} characters.", parameter="stop"
        )
    if len(body.stop_token_ids or ()) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} entries.", parameter="stop_token_ids"
        )
    check_token_ids("stop_token_ids", body.stop_token_ids or (), vocab_size)
    _check_logit_bias(body.logit_bias or {}, vocab_size)
    _check_bad_words(body.bad_words or ())
    named = body.logprob_token_ids or ()
    check_count("logprob_token_ids", len(named), MAX_LOGPROB_TOKEN_IDS, "entries")
    check_token_ids("logprob_token_ids", named, vocab_size)
    if body.allowed_token_ids is not None:
        _check_allowed(body.allowed_token_ids, vocab_size)


def _check_bad_words(words: Sequence[str]) -> None:
    check_count("bad_words", len(words), MAX_BAD_WORDS, "words")
    if any(not 1 <= len(word) <= MAX_BAD_WORD_LENGTH for word in words):
        raise InvalidRequest(
            f"Each string of bad_words must have 1 to {MAX_BAD_WORD_LENGTH} characters.", parameter="bad_words"
        )


def _check_allowed(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids:
        raise InvalidRequest(
            "allowed_token_ids is empty, which allows no tokens: give some token ids, or leave it out to allow all.",
            parameter="allowed_token_ids",
        )
    check_count("allowed_token_ids", len(token_ids), vocab_size, "entries")
    check_token_ids("allowed_token_ids", token_ids, vocab_size)


def _check_logit_bias(logit_bias: Mapping[str, float], vocab_size: int) -> None:
    """
    Raises:
        InvalidRequest: there are too many entries; keys are not valid token ids (names all of them); a value is too
            large.
    """
    check_count("logit_bias", len(logit_bias), MAX_LOGIT_BIAS_ENTRIES, "entries")
    if wrong := [key[:_SHOWN] for key in logit_bias if not (_TOKEN_ID.fullmatch(key) and int(key) < vocab_size)]:
        raise InvalidRequest(
            f"logit_bias has keys that are not token ids, or are out of vocabulary: {', '.join(map(repr, wrong))}. "
            f"The model's vocabulary size is {vocab_size}: keys go from 0 to {vocab_size - 1}.",
            parameter="logit_bias",
        )
    for value in logit_bias.values():
        LOGIT_BIAS_BOUND.check("logit_bias", value)


def stop_strings(body: GenerationFields) -> tuple[str, ...]:
    """Returns `stop` as a tuple; empty if it is null."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
