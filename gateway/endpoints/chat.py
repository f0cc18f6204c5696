"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.context import AnswerContext
from gateway.answers.parser import AnswerParser
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints import kv_transfer
from gateway.endpoints.bad_words import bad_word_runs
from gateway.endpoints.body import read_json
from gateway.endpoints.chat_answer import ChatAnswer
from gateway.endpoints.generation import compiled
from gateway.endpoints.large import beside
from gateway.media.conversations import NO_UPLOADS, Uploads
from gateway.media.settings import check_media_settings
from gateway.protocol.chat import ChatBatchRequest, ChatCompletionRequest, ChatFields
from gateway.reasoning_parsers.omitted import ReasoningOmitted
from gateway.requests.call_constraint import answer_constraint
from gateway.requests.caller import caller_of
from gateway.requests.constraint import NamedConstraint, constraint_of
from gateway.requests.convert import context_bound, make_generation_request
from gateway.requests.field_names import told_as
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.messages import media_kinds, template_messages, texts_of
from gateway.requests.served_model import ServedModel
from gateway.requests.template_variables import switch_of, template_variables
from gateway.requests.tools import ToolUse, tool_use
from gateway.requests.validate import (
    check_choices,
    check_generation,
    check_logprobs,
    check_token_offsets,
    num_alternatives,
)
from gateway.services.tokenizer import RenderedChat
from quire.errors import InvalidRequest
from quire.runners import GENERATE

Conversation = list[dict[str, Any]]

# Fields that make sense only for one conversation, or for several choices of one.
_NOT_IN_BATCHES = (
    "stream", "tools", "use_beam_search", "echo", "prompt_logprobs", "return_token_ids", "return_prompt_text",
    "continue_final_message",
)  # fmt: skip


async def chat_completions(request: Request) -> Response | EventStream:
    """Continues a conversation."""
    return await complete(request, await read_json(request, ChatCompletionRequest))


async def complete(request: Request, body: ChatCompletionRequest) -> Response | EventStream:
    """Answers a conversation."""
    return await _respond(request, body, [body.messages])


async def chat_batch(request: Request) -> Response | EventStream:
    """Answers several conversations with the same parameters, one choice each; choice indexes are conversation indexes.

    Raises:
        InvalidRequest: it uses a field that batches do not support.
    """
    body = await read_json(request, ChatBatchRequest)
    for name in _NOT_IN_BATCHES:
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported for batches of conversations; leave it out.", parameter=name)
    if body.n not in (None, 1):
        raise InvalidRequest(f"n is {body.n}; it must be 1 for a batch of conversations.", parameter="n")
    return await _respond(request, body, body.messages)


async def _respond(request: Request, body: ChatFields, conversations: Sequence[Conversation]) -> Response | EventStream:
    """Answers conversations that share all fields of the body except the messages."""
    context, generation = context_of(request), await prepare(request, body, conversations)
    text = await context.tokenizer.decode(generation.prompts[0].token_ids) if body.return_prompt_text else UNSET
    answer = ChatAnswer(context, body, conversations[0], await context.pipeline.start(generation), text)
    return await answer.respond(request)


async def prepare(
    request: Request,
    body: ChatFields,
    conversations: Sequence[Conversation],
    *,
    uploads: Uploads = NO_UPLOADS,
    parsers: Sequence[type[AnswerParser]] = (),
    renders: bool = False,
) -> GenerationRequest:
    """Checks and renders conversations, and returns the generation request.

    Args:
        uploads: files that came with the request.
        parsers: further parsers of the answers, after those of all chats.
        renders: whether the prompts are what is answered.
    """
    check_token_offsets(body, renders=renders)
    with told_as({"prompt": "messages"}):
        return await _prepare(request, body, conversations, uploads, parsers)


async def _prepare(
    request: Request,
    body: ChatFields,
    conversations: Sequence[Conversation],
    uploads: Uploads,
    parsers: Sequence[type[AnswerParser]],
) -> GenerationRequest:
    context = context_of(request)
    context.require_tokenizer("A chat", "messages")
    model = context.fleet.model(body.model, GENERATE)
    if adapter := model.default_adapter(lambda: media_kinds([each for some in conversations for each in some])):
        body = msgspec.structs.replace(body, model=adapter)
        model = context.fleet.model(adapter, GENERATE)
    check(body, model)
    check_media_settings(body, are_trusted=context.options.media.trust_request_mm_kwargs)
    check_choices(len(conversations), body.num_sequences, context.options.max_choices_per_request)
    caller = caller_of(request, body)
    tools, wanted = await asked_of(request, body)
    variables = template_variables(
        body.chat_template_kwargs,
        body.reasoning_effort,
        context.options.reasoning.reasoning_effort,
        body.documents,
        context.options.default_chat_template_kwargs,
    )

    async def render(messages: Conversation) -> RenderedChat:
        converted = await beside(request, template_messages, messages)
        return await context.tokenizer.render_chat(
            converted.json,
            media=await context.media.read(converted.media, model.media, uploads),
            processor_settings=body.mm_processor_kwargs,
            reading_settings=body.media_io_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            template=body.chat_template,
            kwargs=variables,
            default_effort=context.options.reasoning.default_effort,
            tools_json=tools.offered,
            block_size=model.block_size,
            cache_salt=caller.cache_salt,
            adapter=model.revision,
            max_tokens=context_bound(body, model),
            with_text=context.reasoning is not None,
            with_offsets=bool(body.return_token_offsets),
        )

    first, constraint = await asyncio.gather(render(conversations[0]), compiled(context, wanted))
    rendered = [first, *[await render(messages) for messages in conversations[1:]]]
    thinking = None
    if context.reasoning:
        thinking = await context.reasoning.thinking(
            first.text, continued=continued_texts(body, conversations[0]), is_constrained=constraint is not None,
            switch=switch_of(variables),
        )  # fmt: skip
    generation = make_generation_request(
        body, [each.prompt for each in rendered], model, constraint=constraint,
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        logprobs=num_alternatives(body.top_logprobs or 0, model) if body.logprobs else None,
        prompt_logprobs=num_alternatives(body.prompt_logprobs, model),
        bad_words=await bad_word_runs(context.tokenizer, body.bad_words or ()),
        caller=caller, options=context.options, parsers=(*parsers_of(context, body, tools), *parsers),
        answer_context=AnswerContext(tools.tools, tools.choice, bool(thinking and thinking.is_open)),
        thinking=thinking,
    )  # fmt: skip
    return kv_transfer.taking_part(context, body.kv_transfer_params, generation)


def continued_texts(body: ChatFields, messages: Conversation) -> Sequence[str]:
    """Returns the texts of the final message, if it is to be continued."""
    return texts_of(messages[-1]) if body.continue_final_message else ()


async def asked_of(request: Request, body: ChatFields) -> tuple[ToolUse, NamedConstraint | None]:
    """Returns how a body uses tools, and the constraint on its answers.

    Raises:
        InvalidRequest: they are malformed or contradict each other.
    """
    context = context_of(request)
    # Most requests have no tools, which makes this fast.
    return await beside(request, _asked, body, context) if body.tools else _asked(body, context)


def _asked(body: ChatFields, context: GatewayContext) -> tuple[ToolUse, NamedConstraint | None]:
    tools = tool_use(body, context.tool_parser, context.options.tools)
    return tools, answer_constraint(tools, constraint_of(body))


def parsers_of(context: GatewayContext, body: ChatFields, tools: ToolUse) -> Sequence[type[AnswerParser]]:
    """Returns the parsers of the answers: the reasoning parser first, and the one that omits reasoning last."""
    parsers = (*context.parsers, *tools.parsers)
    if context.reasoning is None:
        return parsers
    omitted = (ReasoningOmitted,) if body.include_reasoning is False else ()
    return (context.reasoning.parser, *parsers, *omitted)


def check(body: ChatFields, model: ServedModel) -> None:
    """
    Raises:
        InvalidRequest: a field of this endpoint is invalid.
    """
    check_generation(body, model)
    check_logprobs("top_logprobs", body.top_logprobs, model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", parameter="top_logprobs")
    if body.logprob_token_ids and not body.logprobs:
        raise InvalidRequest("logprob_token_ids needs logprobs: true.", parameter="logprob_token_ids")
    if body.suffix:
        raise InvalidRequest("suffix is not supported for chats; use /v1/completions.", parameter="suffix")
    if body.prompt_embeds is not None:
        raise InvalidRequest(
            "prompt_embeds is not supported for chats; use /v1/completions.", parameter="prompt_embeds"
        )
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name)
        if value is not None and not 1 <= value < 2**31:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1.", parameter=name)
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt: false.", parameter="continue_final_message"
        )
