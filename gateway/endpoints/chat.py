"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import AnswerContext, ToolChoice
from gateway.answers.deltas import (
    ChoiceUpdate,
    Content,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    ToolCall,
)
from gateway.answers.events import event
from gateway.answers.parser import AnswerParser
from gateway.answers.scores import chat_logprobs, prompt_logprobs
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints.bad_words import bad_word_runs
from gateway.endpoints.body import read_json
from gateway.endpoints.generation import GenerationAnswer, compiled
from gateway.endpoints.large import beside
from gateway.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatMessage,
    ChatToolCall,
    ChatToolCallPiece,
    FunctionCall,
)
from gateway.reasoning_parsers.omitted import ReasoningOmitted
from gateway.requests.call_constraint import answer_constraint
from gateway.requests.caller import caller_of
from gateway.requests.constraint import constraint_of
from gateway.requests.convert import context_bound, make_generation_request
from gateway.requests.messages import template_messages
from gateway.requests.served_model import ServedModel
from gateway.requests.state import RequestState
from gateway.requests.template_variables import template_variables
from gateway.requests.tools import ToolUse, tool_use
from gateway.requests.validate import check_choices, check_generation, check_logprobs, num_alternatives
from quire.errors import InvalidRequest


async def chat_completions(request: Request) -> Response | EventStream:
    """Continues a conversation."""
    context = context_of(request)
    context.require_tokenizer("A chat", "messages")
    body = await read_json(request, ChatCompletionRequest)
    model = context.fleet.model(body.model)
    _check(body, model)
    check_choices(1, body.n, context.options.max_choices_per_request)
    caller = caller_of(request, body)
    tools = await beside(request, tool_use, body, context.tool_parser, context.options.tools)
    wanted = answer_constraint(tools, constraint_of(body))
    rendering = context.tokenizer.render_chat(
        await beside(request, template_messages, body.messages),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
        template=body.chat_template,
        kwargs=template_variables(
            body.chat_template_kwargs, body.reasoning_effort, context.options.reasoning.reasoning_effort, body.documents
        ),
        tools_json=tools.offered,
        block_size=model.block_size,
        cache_salt=caller.cache_salt,
        max_tokens=context_bound(body, model),
        with_text=context.reasoning is not None,
    )
    rendered, constraint = await asyncio.gather(rendering, compiled(context, wanted))
    thinking = None
    if context.reasoning:
        thinking = await context.reasoning.thinking(rendered.text, is_continued=body.continue_final_message)
    generation = make_generation_request(
        body, [rendered.prompt], model, constraint=constraint,
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        logprobs=num_alternatives(body.top_logprobs or 0, model) if body.logprobs else None,
        prompt_logprobs=num_alternatives(body.prompt_logprobs, model),
        bad_words=await bad_word_runs(context.tokenizer, body.bad_words or ()),
        caller=caller, options=context.options, parsers=_parsers(context, body, tools),
        answer_context=AnswerContext(tools.tools, tools.choice, bool(thinking and thinking.is_open)),
        thinking=thinking,
    )  # fmt: skip
    text = await context.tokenizer.decode(generation.prompts[0].token_ids) if body.return_prompt_text else UNSET
    answer = _Answer(context, body, await context.pipeline.start(generation), text)
    return await answer.respond(request)


def _parsers(context: GatewayContext, body: ChatCompletionRequest, tools: ToolUse) -> Sequence[type[AnswerParser]]:
    """Those of the reasoning come first, and last where it is left out."""
    parsers = (*context.parsers, *tools.parsers)
    if context.reasoning is None:
        return parsers
    omitted = (ReasoningOmitted,) if body.include_reasoning is False else ()
    return (context.reasoning.parser, *parsers, *omitted)


def _check(body: ChatCompletionRequest, model: ServedModel) -> None:
    """
    Raises:
        InvalidRequest: a field of this endpoint is wrong.
    """
    check_generation(body, model)
    check_logprobs("top_logprobs", body.top_logprobs, model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", parameter="top_logprobs")
    if body.logprob_token_ids and not body.logprobs:
        raise InvalidRequest("logprob_token_ids needs logprobs: true.", parameter="logprob_token_ids")
    if body.suffix:
        raise InvalidRequest("suffix is for /v1/completions: a conversation has none.", parameter="suffix")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name)
        if value is not None and not 1 <= value < 2**31:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1.", parameter=name)
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt: false.", parameter="continue_final_message"
        )


class _Answer(GenerationAnswer[ChatCompletionRequest, ChatChunkChoice]):
    """The answer to a conversation."""

    def __init__(
        self, context: GatewayContext, body: ChatCompletionRequest, state: RequestState, prompt_text: str | UnsetType
    ) -> None:
        """
        Args:
            prompt_text: what the model got, where it is asked for.
        """
        super().__init__(context, body, state, "chatcmpl")
        self._role = _role(body, context.options.response_role)
        self._prompt_text = prompt_text
        self._echo = _echo_text(body)
        self._callers: set[int] = set()  # choices that call tools

    def opening(self) -> Iterator[bytes]:
        """The role of each choice, and its echo."""
        for index in range(self._request.n):
            chunk = self._chunk(ChatChunkChoice(index, ChatDelta(role=self._role, content="")))
            if self._with_ids:
                chunk.prompt_token_ids = list(self._request.prompts[0].token_ids)
            chunk.prompt_text = self._prompt_text
            yield event(chunk)
            if self._echo:
                yield event(self._chunk(ChatChunkChoice(index, ChatDelta(content=self._echo))))

    def _choice(self, update: ChoiceUpdate) -> ChatChunkChoice:
        choice = ChatChunkChoice(update.index, _delta(update.deltas))
        if choice.delta.tool_calls:
            self._callers.add(update.index)
        if update.scores:
            choice.logprobs = chat_logprobs(update.scores, self._as_ids)
        return choice

    def _chunk(self, *choices: ChatChunkChoice) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            self._id, "chat.completion.chunk", self._created, self._request.answering_model, list(choices),
            self._usage_of_chunk(),
        )  # fmt: skip

    def _whole(self, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]) -> ChatCompletion:
        scores = choices[0].prompt_scores
        return ChatCompletion(
            self._id, "chat.completion", self._created, self._request.answering_model,
            [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            self._usage(),
            prompt_logprobs(scores, texts) if self._body.prompt_logprobs is not None else None,
            list(self._request.prompts[0].token_ids) if self._with_ids else None,
            self._prompt_text,
        )  # fmt: skip

    def _whole_choice(self, index: int, choice: CollectedChoice) -> ChatChoice:
        if choice.tool_calls:
            self._callers.add(index)
        return ChatChoice(
            index,
            _message(self._role, self._echo, choice),
            chat_logprobs(choice.scores, self._as_ids) if self._body.logprobs else None,
            self._reason(index, choice.finish),
            choice.finish.stop_reason,
            choice.token_ids if self._with_ids else None,
        )

    def _reason(self, index: int, finish: Finish) -> str:
        called = index in self._callers and self._request.answer_context.tool_choice is not ToolChoice.NAMED
        return "tool_calls" if called and finish.reason is FinishReason.STOP else finish.reason.value


def _message(role: str, echo: str, choice: CollectedChoice) -> ChatMessage:
    """A choice's message; one that only thinks or calls tools has no content."""
    message = ChatMessage(role, echo + choice.content)
    if choice.reasoning:
        message.reasoning = choice.reasoning
        message.content = message.content or None
    if choice.tool_calls:
        message.tool_calls = [
            ChatToolCall(call.id, FunctionCall(call.arguments, call.name)) for call in choice.tool_calls
        ]
        message.content = message.content or None
    return message


def _delta(deltas: Sequence[Delta]) -> ChatDelta:
    """What a chunk says of a choice; its content may be empty where it says nothing else."""
    content, reasoning = "", ""
    calls: list[ChatToolCallPiece] = []
    for part in deltas:
        if isinstance(part, Content):
            content += part.text
        elif isinstance(part, Reasoning):
            reasoning += part.text
        elif isinstance(part, ToolCall):
            calls.append(_call_piece(part))
    delta = ChatDelta()
    if reasoning:
        delta.reasoning = reasoning
    if calls:
        delta.tool_calls = calls
    if content or not (reasoning or calls):
        delta.content = content
    return delta


def _call_piece(call: ToolCall) -> ChatToolCallPiece:
    if not call.name:
        return ChatToolCallPiece(call.index, FunctionCall(call.arguments))
    return ChatToolCallPiece(call.index, FunctionCall(call.arguments, call.name), call.id, "function")


def _role(body: ChatCompletionRequest, response_role: str) -> str:
    """Who answers: where no turn is opened, whoever has the last one goes on."""
    return response_role if body.add_generation_prompt else str(body.messages[-1]["role"])


def _echo_text(body: ChatCompletionRequest) -> str:
    """With `echo`, the last message's text."""
    content = body.messages[-1].get("content") if body.echo else None
    return content if isinstance(content, str) else ""
