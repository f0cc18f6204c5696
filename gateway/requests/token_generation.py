"""Converts token id requests to completion requests, and requests of other routes to token id requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.protocol.common import GenerationFields, KvTransferParams, SamplingFields
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.generate import GenerateRequest, GenerateSampling, RenderedRequest
from gateway.requests.constraint import NamedConstraint
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.refused import check_refused
from quire.errors import InvalidRequest
from quire.sampling import SAMPLING_BOUNDS
from quire.structured.base import Form

# These fields together define the constraint on the outputs; `structured_outputs` replaces them.
_CONSTRAINTS = frozenset(
    ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
     "guided_json_object", "guided_decoding_backend", "guided_whitespace_pattern")
)  # fmt: skip
_FIELDS = tuple(name for name in SamplingFields.__struct_fields__ if name not in _CONSTRAINTS)
_NEUTRAL = GenerateSampling()
_NAMES = {
    Form.JSON_SCHEMA: "json", Form.REGEX: "regex", Form.GRAMMAR: "grammar", Form.CHOICES: "choice",
    Form.STRUCTURAL_TAG: "structural_tag",
}  # fmt: skip


def completion_of(body: GenerateRequest) -> CompletionRequest:
    """Converts the body to a completion request with one prompt.

    Raises:
        InvalidRequest: a field asks for something unsupported.
    """
    check_refused(body)
    sampling = body.sampling_params
    if body.output_mode == "text" and not sampling.detokenize:
        raise InvalidRequest('output_mode "text" needs sampling_params.detokenize: true.', parameter="output_mode")
    fields = {name: getattr(sampling, name) for name in SamplingFields.__struct_fields__}
    extra = dict(sampling.extra_args or {})
    # vLLM's engines take it from here too, and so some proxies send it here.
    transfer = body.kv_transfer_params or _kv_transfer_params(extra.pop("kv_transfer_params", None))
    return CompletionRequest(
        prompt=[body.token_ids],
        model=body.model, logprobs=sampling.logprobs, stream=body.stream, stream_options=body.stream_options,
        cache_salt=body.cache_salt, priority=body.priority, request_id=body.request_id,
        kv_transfer_params=transfer,
        **(fields | {"vllm_xargs": sampling.vllm_xargs or extra or None}),
    )  # fmt: skip


def _kv_transfer_params(value: Any) -> KvTransferParams | None:
    try:
        return msgspec.convert(value, KvTransferParams | None)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"kv_transfer_params of sampling_params.extra_args is malformed: {error}.", parameter="extra_args"
        ) from None


def rendered(
    body: GenerationFields, generation: GenerationRequest, number: int, wanted: NamedConstraint | None
) -> RenderedRequest:
    """Renders one of a request's prompts for `/inference/v1/generate`.

    Args:
        body: the original request, which has text fields such as stop strings as text.
        wanted: the constraint on its outputs.
    """
    alone = len(generation.prompts) == 1
    thinking, prompt = generation.thinking, generation.prompts[number]
    return RenderedRequest(
        token_ids=list(prompt.token_ids),
        token_offsets=list(prompt.token_offsets) or None,
        sampling_params=_sampling(body, generation, wanted),
        request_id=generation.request_id if alone else f"{generation.request_id}-{number}",
        model=generation.answering_model,
        reasoning_ended=thinking.marks is None if thinking else True,
        stream=body.stream,
        stream_options=body.stream_options,
        cache_salt=body.cache_salt,
        priority=body.priority,
        kv_transfer_params=body.kv_transfer_params,
    )


def _sampling(body: GenerationFields, generation: GenerationRequest, wanted: NamedConstraint | None) -> dict[str, Any]:
    """Returns the fields that are not neutral; fields with model defaults have their resolved values."""
    told = {name: getattr(body, name) for name in _FIELDS}
    found = {name: value for name, value in told.items() if value != getattr(_NEUTRAL, name)}
    found |= {name: getattr(generation.sampling, name) for name in SAMPLING_BOUNDS}
    found |= {name: getattr(generation.sampling, name) for name in ("logprobs", "prompt_logprobs")}
    if generation.sampling.logit_bias:
        found["logit_bias"] = {str(token_id): bias for token_id, bias in generation.sampling.logit_bias}
    if wanted:
        found["structured_outputs"] = structured_outputs_of(wanted)
    return {name: value for name, value in found.items() if value is not None}


def structured_outputs_of(wanted: NamedConstraint) -> Mapping[str, Any]:
    """Returns the equivalent `structured_outputs` field."""
    asked, request = wanted.asked, wanted.asked.request
    form = {_NAMES[request.form]: list(request.choices) if request.form is Form.CHOICES else request.text}
    switches = {
        "backend": asked.backend, "disable_fallback": asked.disable_fallback,
        "disable_any_whitespace": request.disable_any_whitespace,
        "disable_additional_properties": request.disable_additional_properties,
        "whitespace_pattern": request.whitespace_pattern,
    }  # fmt: skip
    return {**form, **{name: value for name, value in switches.items() if value}}
