"""Validates generation requests. The engine trusts no caller, not even the gateway."""

from __future__ import annotations

import re
from typing import Protocol

from engine_svc.plan import RoutedExpertsForm
from engine_svc.requests.prompt_embeds import check_values
from engine_svc.requests.request import ChoiceProgress, GenerationRequest, RequestLimits
from engine_svc.requests.sampling_validation import check_sampling
from quire.bounds import (
    MAX_CACHE_SALT_LENGTH,
    MAX_PROMPT_LOGPROB_ENTRIES,
    MAX_ROUTED_EXPERTS_BYTES,
    MAX_TIMEOUT_MS,
    PRIORITY_BOUND,
    REQUEST_ID_PATTERN,
    Bound,
    check_context_length,
    check_count,
    check_token_ids,
)
from quire.errors import MODEL_NOT_FOUND, InvalidRequest, NotFound
from quire.images import check_images
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters
from quire.structured.base import MAX_GRAMMAR_BYTES, Constraint, constraint_key
from quire.structured.registry import check_backend

_REQUEST_ID = re.compile(REQUEST_ID_PATTERN)


def validate(request: GenerationRequest, limits: RequestLimits) -> None:
    """Checks every field.

    Raises:
        InvalidRequest: a field is out of bounds; names it, its value and the bound.
        ContextTooLong: prompt, or prompt and max_tokens, exceed the model's length.
        NotFound: the model is not served here.
    """
    if request.adapter is None:
        check_model_name(request.model, limits)
    check_count("cache_salt", len(request.cache_salt), MAX_CACHE_SALT_LENGTH, "characters")
    check_identity(request, limits)
    check_sampling(request.sampling, limits)
    _check_prompt(request, limits)
    _check_routed(request.sampling, request.num_prompt_tokens, limits.routed_experts)
    _check_lengths(request.num_prompt_tokens, request.sampling, limits)
    if request.constraint is not None:
        _check_constraint(request.constraint)
    if request.progress:
        _check_progress(request, limits)


class Identified(Protocol):
    """Fields that requests of all kinds have."""

    @property
    def request_id(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def timeout_seconds(self) -> float | None: ...


def check_model_name(model: str, limits: RequestLimits) -> None:
    """Checks the model's name.

    Raises:
        NotFound: the model is not served here.
    """
    if model and model not in limits.served_model_names:
        raise NotFound(
            f"model {model[:200]!r} is not served here; served are {', '.join(limits.served_model_names)}.",
            parameter="model",
            reason=MODEL_NOT_FOUND,
        )


def check_identity(request: Identified, limits: RequestLimits) -> None:
    """Checks a request's id, priority and timeout.

    Raises:
        InvalidRequest: one of them is out of bounds.
    """
    if not _REQUEST_ID.fullmatch(request.request_id):
        raise InvalidRequest("request_id must be 1 to 128 of the characters A-Z a-z 0-9 . _ -", parameter="request_id")
    PRIORITY_BOUND.check("priority", request.priority)
    if request.priority and limits.scheduling_policy != "priority":
        raise InvalidRequest(
            f"priority is {request.priority}, but this server schedules by {limits.scheduling_policy}: leave it out, "
            "or start the engine with --scheduling-policy priority.",
            parameter="priority",
        )
    if request.timeout_seconds is not None:
        Bound(0, MAX_TIMEOUT_MS, minimum_excluded=True).check("timeout_ms", request.timeout_seconds * 1000)


def _check_prompt(request: GenerationRequest, limits: RequestLimits) -> None:
    if request.images:
        _check_images(request, limits)
    if limits.encoder_tokens:
        _check_encoded(request, limits.encoder_tokens)
    if limits.frames_per_token:
        _check_heard(request, limits.frames_per_token)
    if request.prompt_embeds is not None:
        _check_embeds(request, request.prompt_embeds, limits)
        return
    if not request.prompt_token_ids:
        raise InvalidRequest("The prompt is empty; it needs at least one token.", parameter="prompt_token_ids")
    check_token_ids("prompt_token_ids", request.prompt_token_ids, limits.vocab_size)
    alternatives = request.sampling.prompt_logprobs
    entries = 0 if alternatives is None else len(request.prompt_token_ids) * (alternatives + 1)
    if entries > MAX_PROMPT_LOGPROB_ENTRIES:
        raise InvalidRequest(
            f"prompt_logprobs {alternatives} for {len(request.prompt_token_ids)} prompt tokens makes {entries} "
            f"entries; at most {MAX_PROMPT_LOGPROB_ENTRIES} are returned. Ask for fewer alternatives.",
            parameter="prompt_logprobs",
        )


def _check_routed(sampling: SamplingParameters, num_prompt_tokens: int, form: RoutedExpertsForm | None) -> None:
    start = sampling.routed_experts_prompt_start
    if start and form is None:
        raise InvalidRequest(
            f"routed_experts_prompt_start is {start}, but this server does not return routed experts: leave it out, or "
            "start the engine with --enable-return-routed-experts.",
            parameter="routed_experts_prompt_start",
        )
    if start and start >= num_prompt_tokens:
        raise InvalidRequest(
            f"routed_experts_prompt_start is {start}, but the prompt has {num_prompt_tokens} tokens; it must be less.",
            parameter="routed_experts_prompt_start",
        )
    size = (num_prompt_tokens - start) * form.bytes_per_token if form else 0
    if size > MAX_ROUTED_EXPERTS_BYTES:
        raise InvalidRequest(
            f"The routed experts of {num_prompt_tokens - start} prompt tokens take {size} bytes; at most "
            f"{MAX_ROUTED_EXPERTS_BYTES} are returned. Leave out the first ones by routed_experts_prompt_start.",
            parameter="routed_experts_prompt_start",
        )


def _check_images(request: GenerationRequest, limits: RequestLimits) -> None:
    if not limits.accepts_media:
        raise InvalidRequest("images: this worker's model reads text only; leave them out.", parameter="images")
    if request.prompt_embeds is not None:
        raise InvalidRequest("Send images or prompt_embeds, not both.", parameter="images")
    check_images(request.images, len(request.prompt_token_ids), may_go_on=limits.frames_per_token > 0)
    if limits.image_window is None and limits.max_image_tokens is None:
        return
    longest = max(map(len, request.image_runs), default=0)
    if limits.image_window is not None and longest > limits.image_window:
        raise InvalidRequest(
            f"An image takes {longest} tokens, but the model's layers see whole images of at most "
            f"{limits.image_window}. Have it scaled to fewer, as the model's own processor does by default.",
            parameter="images",
        )
    if limits.max_image_tokens is not None and longest > limits.max_image_tokens:
        raise InvalidRequest(
            f"An image takes {longest} tokens, and this model computes an image in one step; steps have at most "
            f"{limits.max_image_tokens}. Start the engine with --max-num-batched-tokens {longest} or more.",
            parameter="images",
        )


def _check_encoded(request: GenerationRequest, encoder_tokens: int) -> None:
    places = [(image.offset, image.num_tokens) for image in request.images]
    if places != [(0, encoder_tokens)] or len(request.prompt_token_ids) == encoder_tokens:
        raise InvalidRequest(
            f"This model writes down one recording: a prompt is {encoder_tokens} tokens of a recording, then at least "
            "one of text. Send the recording to /v1/audio/transcriptions.",
            parameter="messages",
        )
    if request.sampling.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs is not supported: a recording's tokens have no probabilities. Leave it out.",
            parameter="prompt_logprobs",
        )


def _check_heard(request: GenerationRequest, frames_per_token: int) -> None:
    prompt = len(request.prompt_token_ids)
    # What the first token hears is silence before the recording.
    places = [(image.offset, image.end) for image in request.images]
    if places != [(1, prompt)] or request.images[0].num_frames <= prompt * frames_per_token:
        raise InvalidRequest(
            "This model writes down one recording while it hears it: a prompt is a token and the beginning of a "
            "recording that goes on after it. Send the recording to /v1/audio/transcriptions.",
            parameter="messages",
        )
    if request.images[0].goes_on:
        _check_going_on(request)


def _check_going_on(request: GenerationRequest) -> None:
    refused = {
        "n": request.sampling.n > 1, "progress": bool(request.progress), "kv_source": bool(request.kv_source),
        "remote_decode": request.remote_decode, "hands_over": request.hands_over,
    }  # fmt: skip
    if name := next((name for name, is_set in refused.items() if is_set), None):
        raise InvalidRequest(
            f"{name} is set, but the recording goes on while the request runs: one worker writes one text for it. "
            f"Leave {name} out, or send the recording when it is over.",
            parameter=name,
        )


def _check_embeds(request: GenerationRequest, embeds: PromptEmbeds, limits: RequestLimits) -> None:
    if request.prompt_token_ids:
        raise InvalidRequest(
            "Send the prompt as token ids or as prompt_embeds, not as both.", parameter="prompt_embeds"
        )
    if request.sampling.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs cannot be used with prompt_embeds: there are no tokens to score.",
            parameter="prompt_logprobs",
        )
    embeds.check(limits.prompt_embeds_size)
    check_values(embeds, limits.dtype)


def _check_lengths(prompt: int, sampling: SamplingParameters, limits: RequestLimits) -> None:
    most, name = limits.max_model_len, "prompt_token_ids"
    check_context_length(prompt, sampling.max_tokens, most, prompt_name=name)
    if sampling.min_tokens:
        check_context_length(prompt, sampling.min_tokens, most, prompt_name=name, wanted_name="min_tokens")


def _check_constraint(constraint: Constraint) -> None:
    """Checks a constraint, except for the contents of its grammar, which are checked when it is compiled."""
    check_count("constraint.grammar", len(constraint.grammar), MAX_GRAMMAR_BYTES, "bytes")
    check_backend(constraint.backend)
    if constraint.key != constraint_key(constraint.backend, constraint.grammar):
        raise InvalidRequest(
            "constraint.key is not the hash of the backend's name and the grammar; send constraints as the tokenizer "
            "service's CompileConstraint returned them.",
            parameter="constraint",
        )


def _check_progress(request: GenerationRequest, limits: RequestLimits) -> None:
    sampling, progress = request.sampling, request.progress
    if len(progress) != sampling.n:
        raise _progress_error(
            f"progress has {len(progress)} entries, but n is {sampling.n}; give one for each sequence, or none."
        )
    if all(choice.finished for choice in progress):
        raise _progress_error("progress says that every sequence has finished; there is nothing left to generate.")
    if request.is_resumed and sampling.seed is None and sampling.temperature > 0:
        raise _progress_error(
            f"progress is given with temperature {sampling.temperature:g} and no seed: the continuation would differ "
            "from what the other worker would have generated. Send the seed, or temperature 0."
        )
    room = limits.max_model_len - request.num_prompt_tokens
    most = room if sampling.max_tokens is None else sampling.max_tokens
    for index, choice in enumerate(progress):
        _check_choice(index, choice, most, limits)


def _check_choice(index: int, choice: ChoiceProgress, most: int, limits: RequestLimits) -> None:
    check_token_ids("progress", choice.token_ids, limits.vocab_size)
    if len(choice.token_ids) > most or (len(choice.token_ids) == most and not choice.finished):
        raise _progress_error(
            f"progress of choice {index} has {len(choice.token_ids)} tokens, but max_tokens and the model's length "
            f"allow {most}: nothing is left to generate. Mark it as finished."
        )


def _progress_error(message: str) -> InvalidRequest:
    return InvalidRequest(message, parameter="progress")
