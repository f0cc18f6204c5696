"""Protobuf to the engine's own types and back."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any

from engine_svc.adapters.adapter import Adapter
from engine_svc.model_info import ModelInfo
from engine_svc.plan import PositionLogprobs
from engine_svc.requests.outputs import EngineLoad, EngineStatus, FinishReason, SequenceDelta, Usage
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.counters import COUNTS, HISTOGRAMS
from quire.histogram import HistogramSnapshot
from quire.rpc.prompt_embeds import to_prompt_embeds
from quire.rpc.sampling import to_sampling
from quire.rpc.status import to_request_error
from quire.structured.base import Constraint
from quire.v1 import common_pb2

FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
    FinishReason.REPETITION: common_pb2.FINISH_REASON_REPETITION,
}


def to_request(generation: common_pb2.Generation, request_id: str = "") -> GenerationRequest:
    """The request with its defaults filled in, not validated yet.

    Args:
        request_id: its name when the message gives none; made up when this is empty too.
    """
    return GenerationRequest(
        request_id=generation.request_id or request_id or uuid.uuid4().hex,
        prompt_token_ids=list(generation.prompt_token_ids),
        sampling=to_sampling(generation.sampling),
        model=generation.model,
        priority=generation.priority,
        cache_salt=generation.cache_salt,
        timeout_seconds=generation.timeout_ms / 1000 if generation.timeout_ms else None,
        prompt_embeds=to_prompt_embeds(generation),
        constraint=_to_constraint(generation.constraint) if generation.HasField("constraint") else None,
        progress=tuple(ChoiceProgress(list(choice.token_ids), choice.finished) for choice in generation.progress),
    )


def _to_constraint(message: common_pb2.Constraint) -> Constraint:
    return Constraint(message.backend, message.grammar, message.key)


def add_delta(deltas: Any, delta: SequenceDelta, stream_id: int) -> None:
    """Appends a delta to a repeated field of GenerationDelta."""
    message = deltas.add(stream_id=stream_id, choice_index=delta.choice_index, token_ids=delta.token_ids)
    if delta.logprobs:
        _add_logprobs(message.logprobs, delta.logprobs)
    if delta.prompt_logprobs:
        _add_logprobs(message.prompt_logprobs, delta.prompt_logprobs)
    if delta.finish_reason is None:
        return
    message.finish_reason = FINISH_REASONS[delta.finish_reason]
    if delta.stop_token_id is not None:
        message.stop_token_id = delta.stop_token_id
    message.ended_by_constraint = delta.ended_by_constraint
    message.is_final = delta.is_final
    if delta.usage is not None:
        message.usage.CopyFrom(_from_usage(delta.usage))
    if delta.error is not None:
        message.error.CopyFrom(to_request_error(delta.error))


def _add_logprobs(field: Any, positions: list[PositionLogprobs]) -> None:
    for position in positions:
        field.add(token_ids=position.token_ids, logprobs=position.logprobs, rank=position.rank)


def _from_usage(usage: Usage) -> common_pb2.GenerationUsage:
    return common_pb2.GenerationUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        queue_seconds=usage.queue_seconds,
        prefill_seconds=usage.prefill_seconds,
        decode_seconds=usage.decode_seconds,
        preemptions=usage.preemptions,
    )


def from_load(load: EngineLoad) -> common_pb2.EngineLoad:
    """The load as a message."""
    counters: dict[str, Any] = {name: getattr(load.counters, name) for name in COUNTS}
    counters |= {name: _from_histogram(getattr(load.counters, name)) for name in HISTOGRAMS}
    others = ("counters", "adapters", "max_loras", "status")
    gauges = {field.name: getattr(load, field.name) for field in dataclasses.fields(load) if field.name not in others}
    message = common_pb2.EngineLoad(
        **gauges, counters=common_pb2.EngineCounters(**counters), status=from_status(load.status)
    )
    message.adapters.extend(common_pb2.AdapterLoad(**dataclasses.asdict(adapter)) for adapter in load.adapters)
    return message


def from_status(status: EngineStatus) -> common_pb2.EngineStatus:
    """What operators have asked for, as a message."""
    return common_pb2.EngineStatus(**dataclasses.asdict(status))


def _from_histogram(histogram: HistogramSnapshot) -> common_pb2.Histogram:
    return common_pb2.Histogram(bounds=histogram.bounds, counts=histogram.counts, sum=histogram.sum)


def from_adapter(adapter: Adapter) -> common_pb2.AdapterInfo:
    """What is told of an adapter."""
    return common_pb2.AdapterInfo(
        name=adapter.name,
        path=adapter.path,
        revision=adapter.revision,
        rank=adapter.rank,
        base_model_name=adapter.base_model_name,
    )


def from_model_info(info: ModelInfo, adapters: Iterable[Adapter] = ()) -> common_pb2.ModelInfo:
    """The facts as a message, with the adapters that are served."""
    return common_pb2.ModelInfo(
        served_model_names=info.served_model_names,
        model=info.model,
        architecture=info.architecture,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        device=info.device,
        block_size=info.block_size,
        num_kv_blocks=info.num_kv_blocks,
        kv_cache_tokens=info.kv_cache_tokens,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        eos_token_ids=info.eos_token_ids,
        default_sampling=common_pb2.SamplingParams(**info.default_sampling),  # type: ignore[arg-type]  # names fit
        max_logprobs=info.max_logprobs,
        tensor_parallel_size=info.tensor_parallel_size,
        attention_backend=info.attention_backend,
        scheduling_policy=info.scheduling_policy,
        fingerprint=info.fingerprint,
        prompt_embeds_size=info.prompt_embeds_size,
        cpu_kernels=info.cpu_kernels,
        batch_invariant=info.batch_invariant,
        state_bytes=info.state_bytes,
        adapters=map(from_adapter, adapters),
        max_loras=info.max_loras,
        draft_cache_bytes=info.draft_cache_bytes,
        data_parallel_rank=info.data_parallel_rank,
        lockstep_ranks=info.lockstep_ranks,
    )
