"""Converts between the gateway's types and the messages of the other services."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

import msgspec

from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, PromptScore, TokenScore
from gateway.answers.pooled import Pooled, PooledPart
from gateway.answers.routed_experts import RoutedExpertsForm
from gateway.protocol.fleet import WorkerView
from gateway.requests.beams import Beam, Likeliest
from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.pooling_request import PoolingRequest, TokenizedInput, Truncation
from gateway.requests.retelling import GeneratedPart
from gateway.requests.served_model import Adapter, PoolingModel, ServedModel
from gateway.requests.state import GenerationUsage, StreamState
from quire.rpc.constraint import from_constraint
from quire.rpc.images import from_images, to_images
from quire.rpc.prompt_embeds import from_prompt_embeds
from quire.rpc.sampling import from_sampling, to_sampling
from quire.rpc.trace import write_trace
from quire.runners import GENERATE
from quire.sampling import SamplingParameters
from quire.v1 import common_pb2, router_pb2, tokenizer_pb2

_FINISH = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
    common_pb2.FINISH_REASON_REPETITION: FinishReason.REPETITION,
}
_REASONS = {reason: number for number, reason in _FINISH.items()}
_TASKS = {
    "embed": common_pb2.POOLING_TASK_EMBED,
    "classify": common_pb2.POOLING_TASK_CLASSIFY,
    "token_embed": common_pb2.POOLING_TASK_TOKEN_EMBED,
    "token_classify": common_pb2.POOLING_TASK_TOKEN_CLASSIFY,
}
_TASK_NAMES = {number: name for name, number in _TASKS.items()}
_NO_TEXT = tokenizer_pb2.TextDelta()


def to_served_model(info: common_pb2.ModelInfo) -> ServedModel:
    """Converts a model as reported by its workers."""
    return ServedModel(
        tuple(info.served_model_names), info.model, info.max_model_len, info.vocab_size, info.block_size,
        info.max_logprobs, to_sampling(info.default_sampling), tuple(info.eos_token_ids), info.prompt_embeds_size,
        info.accepts_images, info.accepts_videos, info.accepts_audio, info.architecture,
        tuple(map(_adapter, info.adapters)),
        runner=info.runner or GENERATE, pooling=_pooling_model(info.pooling) if info.HasField("pooling") else None,
        routed_experts=_routed_form(info.routed_experts) if info.HasField("routed_experts") else None,
    )  # fmt: skip


def _routed_form(form: common_pb2.RoutedExpertsForm) -> RoutedExpertsForm:
    return RoutedExpertsForm(form.num_layers, form.experts_per_token, form.id_bytes)


def _adapter(info: common_pb2.AdapterInfo) -> Adapter:
    return Adapter(info.name, info.path, info.revision, info.base_model_name, info.is_default)


def _pooling_model(info: common_pb2.PoolingInfo) -> PoolingModel:
    return PoolingModel(
        tuple(_TASK_NAMES[task] for task in info.tasks if task in _TASK_NAMES), info.embedding_size,
        info.token_embedding_size or info.embedding_size, info.is_matryoshka, tuple(info.matryoshka_dimensions),
        info.num_labels, tuple(info.label_names), info.is_cross_encoder, info.is_late_interaction,
        info.type_vocab_size > 1, max(1, info.max_inputs), dict(info.prompts), info.default_prompt_name,
    )  # fmt: skip


def from_pooling(
    request: PoolingRequest, inputs: Sequence[TokenizedInput], request_id: str, timeout_ms: int
) -> common_pb2.PoolRequest:
    """Builds a router's pooling request for some of a request's inputs."""
    parameters = common_pb2.PoolingParameters(
        task=_TASKS[request.task], dimensions=request.dimensions, normalize=request.normalize,
        use_activation=request.use_activation,
    )  # fmt: skip
    return common_pb2.PoolRequest(
        request_id=request_id,
        model=request.requested_model,
        inputs=[
            common_pb2.PoolingInput(
                token_ids=each.token_ids, token_type_ids=each.type_ids, images=from_images(each.images)
            )
            for each in inputs
        ],
        parameters=parameters,
        priority=request.priority,
        timeout_ms=timeout_ms,
        tenant=request.tenant,
        tenant_weight=request.weight,
    )


def to_pooled(answer: common_pb2.PoolResponse) -> PooledPart:
    """Converts a router's pooling response."""
    outputs = [Pooled(each.data, tuple(each.shape), each.num_tokens) for each in answer.outputs]
    return PooledPart(outputs, answer.queue_seconds, answer.compute_seconds)


def to_worker_view(worker: router_pb2.Worker) -> WorkerView:
    """Converts a worker for display in `/fleet`."""
    load, info = worker.load, worker.model_info
    return WorkerView(
        worker.address, router_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower(), worker.reason,
        info.data_parallel_rank if info.HasField("data_parallel_rank") else None,
        list(info.served_model_names), [adapter.name for adapter in info.adapters], load.running_sequences,
        load.waiting_requests, load.used_kv_blocks / load.total_kv_blocks if load.total_kv_blocks else 0.0,
        load.counters.prefix_cache_queries, load.counters.prefix_cache_hits,
        load.counters.external_cache_hits, load.counters.generation_tokens,
        worker.prefill_tokens_per_second, worker.seconds_per_step,
    )  # fmt: skip


def to_prompt(sequence: tokenizer_pb2.TokenSequence) -> TokenizedPrompt:
    """Converts a prompt from the tokenizer service."""
    places = sequence.token_offsets
    offsets = tuple(zip(places[::2], places[1::2], strict=True))
    return TokenizedPrompt(tuple(sequence.token_ids), tuple(sequence.block_keys), token_offsets=offsets)


def to_conversation_prompt(rendered: tokenizer_pb2.RenderChatResponse) -> TokenizedPrompt:
    """Converts a rendered conversation from the tokenizer service."""
    images = to_images(rendered.images)
    return replace(to_prompt(rendered.sequence), images=images, audio_seconds=rendered.audio_seconds)


def to_input(sequence: tokenizer_pb2.TokenSequence) -> TokenizedInput:
    """Converts an input of a pooling model from the tokenizer service."""
    return TokenizedInput(tuple(sequence.token_ids), tuple(sequence.token_type_ids))


def from_truncation(truncation: Truncation | None) -> tokenizer_pb2.Truncation | None:
    """Builds the tokenizer service's message that says how to truncate long texts; None if there is no truncation."""
    if truncation is None:
        return None
    return tokenizer_pb2.Truncation(num_tokens=truncation.num_tokens, keeps_end=truncation.keeps_end)


def from_stream(stream: StreamState, timeout_ms: int) -> common_pb2.Generation:
    """Builds the router's message for one prompt of a request: its progress so far, and the time it has left."""
    request, prompt = stream.owner.request, stream.prompt
    alone = len(request.prompts) == 1
    generation = common_pb2.Generation(
        request_id=request.request_id if alone else f"{request.request_id}-{stream.number}",
        model=request.requested_model,
        prompt_token_ids=prompt.token_ids,
        prompt_embeds=from_prompt_embeds(prompt.embeds),
        images=from_images(prompt.images),
        sampling=_sampling(stream),
        priority=request.priority,
        cache_salt=request.cache_salt,
        timeout_ms=timeout_ms,
        progress=_progress(stream),
        prompt_block_keys=prompt.block_keys,
        prompt_block_size=request.block_size if prompt.block_keys else 0,
        tenant=request.tenant,
        tenant_weight=request.weight,
        session_id=request.session_id,
        constraint=from_constraint(request.constraint) if request.constraint else None,
        kv_source=request.kv_transfer.source,
        remote_decode=request.kv_transfer.remote_decode,
    )
    write_trace(stream.owner.trace, generation)
    return generation


def _sampling(stream: StreamState) -> common_pb2.SamplingParams:
    request = stream.owner.request
    sampling = msgspec.structs.replace(request.sampling, seed=stream.seed)
    if sampling.max_tokens is not None:  # a default may exceed the room left after this prompt
        room = request.max_model_len - stream.prompt.num_tokens
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))
    return from_sampling(sampling)


def _progress(stream: StreamState) -> list[common_pb2.ChoiceProgress]:
    """Progress of each choice; empty for a stream that has delivered nothing."""
    if not any(choice.delivered or choice.finished for choice in stream.choices):
        return []
    return [
        common_pb2.ChoiceProgress(token_ids=choice.delivered, finished=choice.finished or choice.ended)
        for choice in stream.choices
    ]


def to_usage(usage: common_pb2.GenerationUsage) -> GenerationUsage:
    """Converts the usage of a generation."""
    return GenerationUsage(
        usage.cached_prompt_tokens, usage.router_queue_seconds, usage.queue_seconds, usage.prefill_seconds,
        usage.decode_seconds, usage.preemptions, usage.kv_source,
    )  # fmt: skip


def to_update(index: int, delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta = _NO_TEXT) -> ChoiceUpdate:
    """Converts a choice's new tokens, with the text that they complete.

    Args:
        index: of the choice, counted over all prompts.
    """
    deltas: tuple[Delta, ...] = (Content(text.text),) if text.text else ()
    routed, masks = tuple(delta.routed_experts), tuple(tuple(mask.token_ids) for mask in delta.sampling_masks)
    if not (delta.finish_reason or delta.logprobs or delta.prompt_logprobs or text.HasField("stop_string")):
        return ChoiceUpdate(index, deltas, tuple(delta.token_ids), routed_experts=routed, sampling_masks=masks)
    token_ids, scores = tuple(delta.token_ids), _scores(delta, text)
    if text.HasField("stop_string"):
        deltas += (Finish(FinishReason.STOP, text.stop_string),)
        used = text.tokens_used
        token_ids, scores, routed, masks = token_ids[:used], scores[:used], routed[:used], masks[:used]
    elif reason := _FINISH.get(delta.finish_reason):
        deltas += (Finish(reason, _stop_reason(reason, delta)),)
    prompt_scores = _PromptScores(delta.prompt_logprobs) if delta.prompt_logprobs else ()
    return ChoiceUpdate(index, deltas, token_ids, scores, prompt_scores, routed, masks)


def token_by_token(delta: common_pb2.GenerationDelta) -> Iterator[common_pb2.GenerationDelta]:
    """Splits a delta with logprobs into one delta per token. The last one carries the finish reason."""
    *earlier, last = range(len(delta.token_ids))
    for place in earlier:
        yield common_pb2.GenerationDelta(
            token_ids=delta.token_ids[place : place + 1], logprobs=delta.logprobs[place : place + 1],
            prompt_logprobs=() if place else delta.prompt_logprobs,
            routed_experts=delta.routed_experts[place : place + 1],
            sampling_masks=delta.sampling_masks[place : place + 1],
        )  # fmt: skip
    yield common_pb2.GenerationDelta(
        token_ids=delta.token_ids[last:], logprobs=delta.logprobs[last:],
        prompt_logprobs=() if earlier else delta.prompt_logprobs, finish_reason=delta.finish_reason,
        stop_token_id=delta.stop_token_id if delta.HasField("stop_token_id") else None,
        ended_by_constraint=delta.ended_by_constraint, routed_experts=delta.routed_experts[last:],
        sampling_masks=delta.sampling_masks[last:],
    )  # fmt: skip


def from_beam(beam: Beam, ends: bool, sampling: SamplingParameters) -> common_pb2.GenerationDelta:
    """Converts a beam into a single delta, as if an engine had generated the sequence.

    Args:
        ends: whether its last token is a stop token or EOS that ended it.
    """
    last = beam.token_ids[-1]
    return common_pb2.GenerationDelta(
        token_ids=beam.token_ids,
        logprobs=() if sampling.logprobs is None else [_chosen(*chosen, sampling.logprobs) for chosen in beam.chosen],
        finish_reason=common_pb2.FINISH_REASON_STOP if ends or beam.is_complete else common_pb2.FINISH_REASON_LENGTH,
        stop_token_id=last if ends and last in sampling.stop_token_ids else None,
        ended_by_constraint=beam.is_complete,
    )


def from_generated(part: GeneratedPart) -> common_pb2.GenerationDelta:
    """Converts output generated earlier back into the delta that the engine sent."""
    finish = part.finish
    stop_reason = finish.stop_reason if finish else None
    return common_pb2.GenerationDelta(
        token_ids=part.token_ids,
        logprobs=[
            common_pb2.TokenLogprobs(token_ids=score.token_ids, logprobs=score.logprobs, rank=score.rank)
            for score in part.scores
        ],
        finish_reason=_REASONS[finish.reason] if finish else None,
        stop_token_id=stop_reason if isinstance(stop_reason, int) else None,
        ended_by_constraint=part.ends_with_text,
    )


def _chosen(position: Likeliest, choice: int, alternatives: int) -> common_pb2.TokenLogprobs:
    return common_pb2.TokenLogprobs(
        token_ids=(position.token_ids[choice], *position.token_ids[:alternatives]),
        logprobs=(position.logprobs[choice], *position.logprobs[:alternatives]),
        rank=choice + 1,
    )


def _stop_reason(reason: FinishReason, delta: common_pb2.GenerationDelta) -> str | int | None:
    if reason is FinishReason.REPETITION:
        return "repetition_detected"
    return delta.stop_token_id if delta.HasField("stop_token_id") else None


def _scores(delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> tuple[TokenScore, ...]:
    texts = iter(text.lookup_token_bytes)  # empty for a choice that is not detokenized
    lengths = itertools.chain(text.text_lengths, itertools.repeat(0))  # 0 for tokens without text
    return tuple(
        TokenScore(
            tuple(position.token_ids), tuple(position.logprobs),
            tuple(itertools.islice(texts, len(position.token_ids))), position.rank, length,
        )
        for position, length in zip(delta.logprobs, lengths, strict=False)
    )  # fmt: skip


class _PromptScores(Sequence[PromptScore]):
    """Converts prompt logprobs lazily: there may be a hundred thousand of them, and they are read in a thread."""

    def __init__(self, positions: Sequence[common_pb2.TokenLogprobs]) -> None:
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[PromptScore]:
        return map(_to_score, self._positions)

    @overload
    def __getitem__(self, index: int) -> PromptScore: ...
    @overload
    def __getitem__(self, index: slice) -> _PromptScores: ...
    def __getitem__(self, index: int | slice) -> PromptScore | _PromptScores:
        if isinstance(index, slice):
            return _PromptScores(self._positions[index])
        return _to_score(self._positions[index])


def _to_score(position: common_pb2.TokenLogprobs) -> PromptScore:
    return PromptScore(tuple(position.token_ids), tuple(position.logprobs), position.rank)
