"""Checks of what both generating endpoints share. The engine checks again; here a field has its HTTP name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.protocol.common import GenerationFields
from quire.bounds import (
    LOGIT_BIAS_BOUND,
    MAX_CACHE_SALT_LENGTH,
    MAX_CALLER_NAME_LENGTH,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_TOKEN_IDS,
    PRIORITY_BOUND,
    SAMPLING_BOUNDS,
)
from quire.errors import InvalidRequest
from quire.rpc.context import is_request_id
from quire.v1 import common_pb2

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 256
MAX_MESSAGES = 4096
_SHOWN = 100

# Field → values that ask for nothing, besides null. Any other value is refused: Quire does not have the feature yet.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "use_beam_search": (False,), "length_penalty": (1, 1.0), "spaces_between_special_tokens": (True,),
        "truncation_side": ("left",), "logprob_token_ids": ([],), "allowed_token_ids": (), "bad_words": ([],),
        "response_format": ({"type": "text"},), "structured_outputs": (), "guided_json": (), "guided_regex": (),
        "guided_choice": (), "guided_grammar": (), "kv_transfer_params": (), "vllm_xargs": ({},),
        "repetition_detection": (), "thinking_token_budget": (), "prompt_embeds": (), "best_of": (1,),
        "suffix": ("",), "tools": (), "functions": (), "function_call": ("none",), "tool_choice": ("none",),
        "parallel_tool_calls": (True, False), "documents": ([],), "reasoning_effort": ("none",),
        "modalities": (["text"],), "audio": (),
    }
)  # fmt: skip


def check_generation(body: GenerationFields, model: common_pb2.ModelInfo) -> None:
    """Refuses what no engine would run.

    Raises:
        InvalidRequest: names the field, its value and the fix.
    """
    check_unsupported(body)
    for name, bound in SAMPLING_BOUNDS.items():
        value = getattr(body, name)
        # vLLM's clients write -1 for "all tokens".
        if value is not None and not (name == "top_k" and value == -1):
            bound.check(name, value)
    PRIORITY_BOUND.check("priority", body.priority)
    if (body.n or 1) > 1 and body.temperature == 0:
        raise InvalidRequest("n is more than 1 with temperature 0: all choices would be the same.", parameter="n")
    check_logprobs("prompt_logprobs", body.prompt_logprobs, model.max_logprobs)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs are not available in streams.", parameter="prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", parameter="stream_options")
    _check_lists(body, model.vocab_size)
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= MAX_CACHE_SALT_LENGTH:
        raise InvalidRequest(f"cache_salt needs 1 to {MAX_CACHE_SALT_LENGTH} characters.", parameter="cache_salt")
    for name in ("prompt_cache_key", "user"):
        if len(getattr(body, name) or "") > MAX_CALLER_NAME_LENGTH:
            raise InvalidRequest(
                f"{name} has {len(getattr(body, name))} characters; at most {MAX_CALLER_NAME_LENGTH} are allowed.",
                parameter=name,
            )
    if body.request_id is not None and not is_request_id(body.request_id):
        raise InvalidRequest("request_id needs 1 to 128 of A-Z a-z 0-9 . _ -", parameter="request_id")


def check_choices(prompts: int, n: int | None, limit: int) -> None:
    """Refuses too many choices before anything is made for them.

    Raises:
        InvalidRequest: there is no prompt, or there are too many of them, or of their choices.
    """
    n = n or 1
    if not prompts or prompts * n > limit:
        parameter = "n" if 0 < prompts <= limit and n > 1 else "prompt"
        raise InvalidRequest(
            f"{prompts} prompts with n {n} ask for {prompts * n} choices; a request needs 1 to {limit} "
            "(--max-choices-per-request): send fewer prompts at a time, or lower n.",
            parameter=parameter,
        )


def check_unsupported(body: GenerationFields) -> None:
    """Refuses features that Quire does not have, rather than ignoring them.

    Raises:
        InvalidRequest: names the first.
    """
    for name, neutral in UNSUPPORTED.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise InvalidRequest(f"{name} is not implemented by Quire yet; leave it out.", parameter=name)


def check_logprobs(name: str, value: int | None, max_logprobs: int) -> None:
    """
    Raises:
        InvalidRequest: more alternatives than the server gives.
    """
    if value is not None and not 0 <= value <= max_logprobs:
        raise InvalidRequest(f"{name} is {value}; it must be between 0 and {max_logprobs}.", parameter=name)


def _check_lists(body: GenerationFields, vocab_size: int) -> None:
    stops = stop_strings(body)
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop has {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed.", parameter="stop"
        )
    if any(not 1 <= len(stop) <= MAX_STOP_STRING_LENGTH for stop in stops):
        raise InvalidRequest(f"Each string of stop needs 1 to {MAX_STOP_STRING_LENGTH} characters.", parameter="stop")
    if len(body.stop_token_ids or ()) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(f"stop_token_ids may have {MAX_STOP_TOKEN_IDS} entries.", parameter="stop_token_ids")
    check_token_ids("stop_token_ids", body.stop_token_ids or (), vocab_size)
    if len(body.logit_bias or ()) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidRequest(f"logit_bias may have {MAX_LOGIT_BIAS_ENTRIES} entries.", parameter="logit_bias")
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise InvalidRequest(
                f"logit_bias has the key {key[:_SHOWN]!r}; keys are token ids.", parameter="logit_bias"
            )
        check_token_ids("logit_bias", [int(key)], vocab_size)
        LOGIT_BIAS_BOUND.check("logit_bias", value)


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """
    Raises:
        InvalidRequest: an id lies outside the vocabulary; names the first.
    """
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(
            f"{name} has the token id {wrong}; the vocabulary of the model ends at {vocab_size - 1}.", parameter=name
        )


def stop_strings(body: GenerationFields) -> tuple[str, ...]:
    """`stop` as a tuple; null entries of the protocol are gone."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
