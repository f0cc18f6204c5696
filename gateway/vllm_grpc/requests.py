"""Converts requests of the service to those of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from smg_grpc_proto import vllm_engine_pb2

from gateway.protocol.common import KvTransferParams
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.constraints import StructuredOutputs
from gateway.protocol.pooling import EmbeddingRequest
from quire.errors import InvalidRequest

# Fields with the meaning and neutral value of the same name in requests to the gateway.
_SAME = (
    "min_p", "frequency_penalty", "presence_penalty", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "ignore_eos", "include_stop_str_in_output",
)  # fmt: skip
# Zero stands for these: proto3 does not tell it from an absent field.
_UNLESS_ZERO = {"top_p": 1.0, "repetition_penalty": 1.0, "n": 1}
_OPTIONAL = ("max_tokens", "logprobs", "prompt_logprobs", "seed", "truncate_prompt_tokens")
_CONSTRAINTS_IN_JSON = {"json_schema": "json", "structural_tag": "structural_tag"}  # keys of structured_outputs
_MEDIA = ("mm_inputs", "media_refs")


def completion_of(request: vllm_engine_pb2.GenerateRequest) -> CompletionRequest:
    """
    Raises:
        InvalidRequest: the request has no prompt, or asks for something unsupported.
    """
    if any(map(request.HasField, _MEDIA)) or request.extra_mm_inputs:
        raise InvalidRequest(
            "Images and videos cannot be sent by this service: leave mm_inputs, extra_mm_inputs and media_refs out, or "
            "send them to the HTTP API of a server without --grpc.",
            parameter="mm_inputs",
        )
    if request.HasField("data_parallel_rank"):
        raise InvalidRequest(
            f"data_parallel_rank is {request.data_parallel_rank}, but this server picks the worker itself: leave it "
            "out.",
            parameter="data_parallel_rank",
        )
    if request.HasField("kv_transfer_params"):
        raise InvalidRequest(
            "kv_transfer_params is not supported; send kv_transfer_params_json.", parameter="kv_transfer_params"
        )
    kind = request.WhichOneof("input")
    if kind is None:
        raise InvalidRequest("The request has no input: set tokenized or text.", parameter="input")
    return CompletionRequest(
        prompt=request.text if kind == "text" else [list(request.tokenized.input_ids)],
        request_id=request.request_id or None,
        kv_transfer_params=_kv_transfer_params(request),
        **_sampling(request.sampling_params),
    )


def embedding_of(request: vllm_engine_pb2.EmbedRequest) -> EmbeddingRequest:
    """
    Raises:
        InvalidRequest: the request has no token ids.
    """
    if not request.HasField("tokenized"):
        raise InvalidRequest("The request has no input: set tokenized.", parameter="input")
    return EmbeddingRequest(input=[list(request.tokenized.input_ids)], request_id=request.request_id or None)


def _sampling(given: vllm_engine_pb2.SamplingParams) -> Mapping[str, Any]:
    """Returns all sampling fields: the model's own defaults are for whoever sends the request to apply."""
    return {
        **{name: getattr(given, name) for name in _SAME},
        **{name: getattr(given, name) or neutral for name, neutral in _UNLESS_ZERO.items()},
        **{name: getattr(given, name) for name in _OPTIONAL if given.HasField(name)},
        "temperature": given.temperature if given.HasField("temperature") else 1.0,
        "top_k": given.top_k,
        "stop": list(given.stop),
        "stop_token_ids": list(given.stop_token_ids),
        "logit_bias": {str(token_id): bias for token_id, bias in given.logit_bias.items()} or None,
        "structured_outputs": _structured_outputs(given),
    }


def _structured_outputs(given: vllm_engine_pb2.SamplingParams) -> StructuredOutputs | None:
    kind = given.WhichOneof("constraint")
    if kind is None:
        return None
    value: Any = list(given.choice.choices) if kind == "choice" else getattr(given, kind)
    if kind in _CONSTRAINTS_IN_JSON:
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"{kind} is no JSON: {error}.", parameter=kind) from None
        kind, value = _CONSTRAINTS_IN_JSON[kind], msgspec.Raw(value.encode())
    fields: dict[str, Any] = {kind: value}
    return StructuredOutputs(**fields)


def _kv_transfer_params(request: vllm_engine_pb2.GenerateRequest) -> KvTransferParams | None:
    if not request.HasField("kv_transfer_params_json"):
        return None
    try:
        return msgspec.json.decode(request.kv_transfer_params_json, type=KvTransferParams)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            f"kv_transfer_params_json is malformed: {error}.", parameter="kv_transfer_params_json"
        ) from None
