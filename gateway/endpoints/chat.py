"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway import large
from gateway.caller import caller_of
from gateway.context import GatewayContext, context_of
from gateway.convert import context_bound, make_job, tokenized
from gateway.job import ChoiceEvent, Job
from gateway.large import beside
from gateway.live import LiveRequest
from gateway.messages import template_messages
from gateway.outcome import ChoiceOutcome, answer_size, collect, prompt_texts, usage_of
from gateway.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatMessage,
)
from gateway.protocol.decode import read_json
from gateway.scores import chat_logprobs, prompt_logprobs
from gateway.stream import EventStream
from gateway.validate import check_choices, check_generation, check_logprobs
from quire.errors import InvalidRequest
from quire.v1 import common_pb2


async def chat_completions(request: Request) -> Response | EventStream:
    """Continues a conversation."""
    context = context_of(request)
    body = await read_json(request, ChatCompletionRequest)
    model = context.fleet.model(body.model)
    _check(body, model)
    check_choices(1, body.n, context.options.max_choices_per_request)
    caller = caller_of(request, body)
    sequence = await context.tokenizer.render_chat(
        await beside(request, template_messages, body.messages),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
        template=body.chat_template,
        kwargs=body.chat_template_kwargs,
        block_size=model.block_size,
        cache_salt=caller.cache_salt,
        max_tokens=context_bound(body, model),
    )
    job = make_job(
        body, [await beside(request, tokenized, sequence)], model,
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        caller=caller, options=context.options,
    )  # fmt: skip
    live = await context.pipeline.start(job)
    answer = _Answer(context, body, job, live)
    if body.stream:
        return EventStream(live, answer.opening(), answer.chunks, answer.closing)
    outcomes = await collect(live, request)
    texts = await prompt_texts(request, outcomes)
    size = answer_size(outcomes, job, bool(body.return_token_ids))
    return await large.answer(request, size, lambda: answer.whole(outcomes, texts))


def _check(body: ChatCompletionRequest, model: common_pb2.ModelInfo) -> None:
    """
    Raises:
        InvalidRequest: a field of this endpoint is wrong.
    """
    check_generation(body, model)
    check_logprobs("top_logprobs", body.top_logprobs, model.max_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", parameter="top_logprobs")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name)
        if value is not None and not 1 <= value < 2**31:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1.", parameter=name)
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt: false.", parameter="continue_final_message"
        )


class _Answer:
    """One request's answer in either form."""

    def __init__(self, context: GatewayContext, body: ChatCompletionRequest, job: Job, live: LiveRequest) -> None:
        self._context = context
        self._body = body
        self._job = job
        self._live = live
        self._id = f"chatcmpl-{job.request_id}"
        self._created = int(time.time())
        self._as_ids = bool(body.return_tokens_as_token_ids or context.options.return_tokens_as_token_ids)
        options = body.stream_options
        self._usage_at_end = context.options.enable_force_include_usage or bool(options and options.include_usage)
        self._usage_always = bool(options and options.include_usage and options.continuous_usage_stats)
        self._echo = _echo_text(body)

    def opening(self) -> Iterator[ChatCompletionChunk]:
        """The role of each choice, and its echo."""
        for index in range(self._job.n):
            delta = ChatDelta(role=self._context.options.response_role, content="")
            chunk = self._chunk(ChatChunkChoice(index, delta))
            if self._body.return_token_ids:
                chunk.prompt_token_ids = list(self._job.prompts[0].token_ids)
            yield chunk
            if self._echo:
                yield self._chunk(ChatChunkChoice(index, ChatDelta(content=self._echo)))

    def chunks(self, event: ChoiceEvent) -> Iterator[ChatCompletionChunk]:
        """An event's chunk; none for one that has nothing to show."""
        choice = ChatChunkChoice(event.index, ChatDelta(content=event.text))
        if event.scores:
            choice.logprobs = chat_logprobs(event.scores, self._as_ids)
        if self._body.return_token_ids:
            choice.token_ids = list(event.token_ids)
        if event.finish:
            choice.finish_reason = event.finish.value
            choice.stop_reason = event.stop_reason
        if event.text or event.finish or event.scores or self._body.return_token_ids:
            yield self._chunk(choice)

    def closing(self) -> Iterator[ChatCompletionChunk]:
        """Usage, if asked for."""
        if self._usage_at_end:
            chunk = self._chunk()
            chunk.usage = usage_of(self._live, self._context.options.enable_prompt_tokens_details)
            yield chunk

    def _chunk(self, *choices: ChatChunkChoice) -> ChatCompletionChunk:
        usage = usage_of(self._live, False) if self._usage_always else UNSET
        return ChatCompletionChunk(
            self._id, "chat.completion.chunk", self._created, self._job.answering_model, list(choices), usage
        )

    def whole(self, outcomes: list[ChoiceOutcome], texts: Mapping[int, bytes]) -> ChatCompletion:
        """The answer in one piece.

        Args:
            texts: the bytes of the tokens in the prompt's scores.
        """
        scores = outcomes[0].prompt_scores
        with_ids = self._body.return_token_ids
        return ChatCompletion(
            self._id, "chat.completion", self._created, self._job.answering_model,
            [self._choice(index, outcome) for index, outcome in enumerate(outcomes)],
            usage_of(self._live, self._context.options.enable_prompt_tokens_details),
            prompt_logprobs(scores, texts) if self._body.prompt_logprobs is not None else None,
            list(self._job.prompts[0].token_ids) if with_ids else None,
        )  # fmt: skip

    def _choice(self, index: int, outcome: ChoiceOutcome) -> ChatChoice:
        return ChatChoice(
            index,
            ChatMessage(self._context.options.response_role, self._echo + outcome.text),
            chat_logprobs(outcome.scores, self._as_ids) if self._body.logprobs else None,
            outcome.finish.value if outcome.finish else None,
            outcome.stop_reason,
            outcome.token_ids if self._body.return_token_ids else None,
        )


def _echo_text(body: ChatCompletionRequest) -> str:
    """With `echo`, the last message's text."""
    content = body.messages[-1].get("content") if body.echo else None
    return content if isinstance(content, str) else ""
