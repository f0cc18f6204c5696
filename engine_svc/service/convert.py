"""Converts between protobuf messages and the engine's own types."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from engine_svc.adapters.adapter import Adapter
from engine_svc.model_info import ModelInfo
from engine_svc.plan import PositionLogprobs, RoutedExpertsForm
from engine_svc.pooling_plan import PooledOutput
from engine_svc.requests.outputs import EngineLoad, EngineStatus, FinishReason, SequenceDelta, Usage
from engine_svc.requests.pooling import PoolingFacts, PoolingInput, PoolingRequest
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.bounds import MAX_TIMEOUT_MS
from quire.counters import COUNTS, HISTOGRAMS
from quire.histogram import HistogramSnapshot
from quire.rpc.constraint import to_constraint
from quire.rpc.images import to_images
from quire.rpc.prompt_embeds import to_prompt_embeds
from quire.rpc.sampling import to_sampling
from quire.rpc.status import to_request_error
from quire.v1 import common_pb2

FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
    FinishReason.REPETITION: common_pb2.FINISH_REASON_REPETITION,
}


# Names of tasks on the control side; empty for the model's default, its first.
TASKS = {
    common_pb2.POOLING_TASK_UNSPECIFIED: "",
    common_pb2.POOLING_TASK_EMBED: "embed",
    common_pb2.POOLING_TASK_CLASSIFY: "classify",
    common_pb2.POOLING_TASK_TOKEN_EMBED: "token_embed",
    common_pb2.POOLING_TASK_TOKEN_CLASSIFY: "token_classify",
}
TASK_NUMBERS = {name: number for number, name in TASKS.items()}


def to_request(
    generation: common_pb2.Generation, request_id: str = "", *, hands_over: bool = False
) -> GenerationRequest:
    """Converts a request and fills in defaults; does not validate it.

    Args:
        request_id: used if the message has none; generated if this is empty too.
        hands_over: see GenerationRequest.
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
        images=to_images(generation.images),
        constraint=to_constraint(generation.constraint) if generation.HasField("constraint") else None,
        progress=tuple(ChoiceProgress(list(choice.token_ids), choice.finished) for choice in generation.progress),
        hands_over=hands_over,
        kv_source=generation.kv_source,
        remote_decode=generation.remote_decode,
    )


def to_pooling_request(message: common_pb2.PoolRequest, request_id: str, remaining: float | None) -> PoolingRequest:
    """Converts a pooling request; does not validate it.

    Args:
        request_id: used if the message has none; generated if this is empty too.
        remaining: seconds until the call's own deadline; None if it has none.
    """
    parameters = message.parameters
    timeouts = [message.timeout_ms / 1000] if message.timeout_ms else []
    if remaining is not None and 0 < remaining * 1000 < MAX_TIMEOUT_MS:  # longer deadlines are no limit
        timeouts.append(remaining)
    return PoolingRequest(
        request_id=message.request_id or request_id or uuid.uuid4().hex,
        inputs=tuple(
            PoolingInput(list(each.token_ids), list(each.token_type_ids), to_images(each.images))
            for each in message.inputs
        ),
        model=message.model,
        task=TASKS.get(parameters.task, f"unknown ({parameters.task})"),
        dimensions=parameters.dimensions if parameters.HasField("dimensions") else None,
        normalize=parameters.normalize if parameters.HasField("normalize") else None,
        use_activation=parameters.use_activation if parameters.HasField("use_activation") else None,
        priority=message.priority,
        timeout_seconds=min(timeouts, default=None),
    )


def from_pooled(delta: SequenceDelta) -> common_pb2.PoolResponse:
    """The response to a request that has succeeded."""
    response = common_pb2.PoolResponse()
    for output in delta.pooled:
        assert isinstance(output, PooledOutput)
        response.outputs.add(data=output.data, shape=output.shape, num_tokens=output.num_tokens)
    if delta.usage is not None:
        response.queue_seconds, response.compute_seconds = delta.usage.queue_seconds, delta.usage.prefill_seconds
    return response


def add_delta(deltas: Any, delta: SequenceDelta, stream_id: int) -> None:
    """Appends a delta to a repeated field of GenerationDelta."""
    message = deltas.add(
        stream_id=stream_id, choice_index=delta.choice_index, token_ids=delta.token_ids,
        num_previous_tokens=delta.num_previous_tokens, weight_version=delta.weight_version,
    )  # fmt: skip
    if delta.logprobs:
        _add_logprobs(message.logprobs, delta.logprobs)
    if delta.prompt_logprobs:
        _add_logprobs(message.prompt_logprobs, delta.prompt_logprobs)
    if delta.routed_experts:
        message.routed_experts.extend(delta.routed_experts)
    for token_ids in delta.sampling_masks or ():
        message.sampling_masks.add(token_ids=token_ids)
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
    """The status that operators have requested, as a message."""
    return common_pb2.EngineStatus(**dataclasses.asdict(status))


def _from_histogram(histogram: HistogramSnapshot) -> common_pb2.Histogram:
    return common_pb2.Histogram(bounds=histogram.bounds, counts=histogram.counts, sum=histogram.sum)


def from_adapter(adapter: Adapter) -> common_pb2.AdapterInfo:
    """The description of an adapter, as a message."""
    return common_pb2.AdapterInfo(
        name=adapter.name,
        path=adapter.path,
        revision=adapter.revision,
        rank=adapter.rank,
        base_model_name=adapter.base_model_name,
        is_default=adapter.is_default,
    )


def from_model_info(info: ModelInfo, adapters: Iterable[Adapter] = ()) -> common_pb2.ModelInfo:
    """The model info as a message, with the served adapters."""
    return common_pb2.ModelInfo(
        served_model_names=info.served_model_names,
        model=info.model,
        architecture=info.architecture,
        model_type=info.model_type,
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
        accepts_images=info.accepts_images,
        accepts_videos=info.accepts_videos,
        accepts_audio=info.accepts_audio,
        cpu_kernels=info.cpu_kernels,
        batch_invariant=info.batch_invariant,
        state_bytes=info.state_bytes,
        num_snapshots=info.num_snapshots,
        num_host_blocks=info.num_host_blocks,
        num_host_snapshots=info.num_host_snapshots,
        kv_role=info.kv_role,
        kv_connector=info.kv_connector,
        ec_role=info.ec_role,
        encoder_fingerprint=info.encoder_fingerprint,
        adapters=map(from_adapter, adapters),
        max_loras=info.max_loras,
        draft_cache_bytes=info.draft_cache_bytes,
        data_parallel_rank=info.data_parallel_rank,
        lockstep_ranks=info.lockstep_ranks,
        runner=info.runner,
        pooling=None if info.pooling is None else _from_pooling(info.pooling),
        routed_experts=None if info.routed_experts is None else _from_routed(info.routed_experts),
    )


def _from_routed(form: RoutedExpertsForm) -> common_pb2.RoutedExpertsForm:
    return common_pb2.RoutedExpertsForm(**msgspec.structs.asdict(form))


def _from_pooling(facts: PoolingFacts) -> common_pb2.PoolingInfo:
    return common_pb2.PoolingInfo(
        tasks=[TASK_NUMBERS[task] for task in facts.tasks],
        embedding_size=facts.embedding_size,
        token_embedding_size=facts.token_embedding_size,
        is_matryoshka=facts.is_matryoshka,
        matryoshka_dimensions=facts.matryoshka_dimensions,
        num_labels=facts.num_labels,
        label_names=facts.label_names,
        is_cross_encoder=facts.is_cross_encoder,
        is_late_interaction=facts.is_late_interaction,
        type_vocab_size=facts.type_vocab_size,
        pooling_type=facts.pooling_type,
        normalize=facts.normalize,
        use_activation=facts.use_activation,
        max_inputs=facts.max_inputs,
        prompts=facts.prompts,
        default_prompt_name=facts.default_prompt_name,
    )
