"""`/v1/chat/completions/derender` and `/v1/completions/derender`: turn token ids generated earlier into answers.

The server keeps no state between the chunks of a stream: the client passes on the tokens so far, which are processed
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import updates
from gateway.answers.context import AnswerContext
from gateway.answers.stream import EventStream
from gateway.context import context_of
from gateway.endpoints import chat, completions
from gateway.endpoints.body import read_json
from gateway.endpoints.chat_answer import ChatAnswer
from gateway.endpoints.completions import CompletionAnswer, Prompt
from gateway.endpoints.generation import Choice, GenerationAnswer
from gateway.endpoints.large import beside
from gateway.errors import json_response
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.common import GenerationFields
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.generate import (
    DerenderChatRequest,
    DerenderChatStreamResponse,
    DerenderCompletionRequest,
    DerenderCompletionStreamResponse,
    GeneratedResponse,
    StreamState,
)
from gateway.requests.caller import tenant_of
from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.messages import template_messages
from gateway.requests.retelling import GeneratedPart, Retelling
from gateway.requests.state import RequestState
from quire.bounds import check_token_ids
from quire.errors import InvalidRequest, Unavailable
from quire.runners import GENERATE

Body = DerenderChatRequest | DerenderCompletionRequest
Fields = TypeVar("Fields", bound=GenerationFields)

# Fields about how the answer is sent or about what only engines know; the response to derender determines these.
_OPEN: Mapping[str, Any] = MappingProxyType(
    {"stream": None, "stream_options": None, "prompt_logprobs": None, "n": None, "use_beam_search": None}
)
_NO_MESSAGE = {"role": "user", "content": ""}


async def derender_chat(request: Request) -> Response | EventStream:
    """Converts outputs to a chat completion, or one chunk to a chat completion chunk."""
    body = await read_json(request, DerenderChatRequest)
    told = _told(body, body.generate_response, "generate_response")
    given = body.chat_request or ChatCompletionRequest(messages=[_NO_MESSAGE], logprobs=_has_logprobs(told))
    asked = _asked(given, body, [told])
    job = await _Job.of_chat(request, body, asked, body.prompt_token_ids or told.prompt_token_ids)
    prompt = job.prompt(body.prompt_token_ids, body.prompt_tokens, told)
    if not body.stream:
        state = await job.start([prompt], [told])
        return await ChatAnswer(job.context, asked, asked.messages, state, UNSET).respond(request)
    state = await job.start_chunk(prompt, told)
    answer = ChatAnswer(job.context, asked, asked.messages, state, UNSET)
    choice = await job.last_choice(answer, state)
    if choice and body.stream_state is None:
        choice.delta.role = answer.role
    chunk = answer.chunk(*_numbered(choice, told))
    chunk.usage = told.usage or UNSET
    return json_response(DerenderChatStreamResponse(chunk, job.next_state(0)))


async def derender_completion(request: Request) -> Response | EventStream:
    """Converts outputs to a completion, one response per prompt, or one chunk to a completion chunk."""
    body = await read_json(request, DerenderCompletionRequest)
    responses = [_told(body, None, "")] if body.stream else body.generate_responses or []
    if not responses:
        raise InvalidRequest("generate_responses needs a response for each prompt.", parameter="generate_responses")
    given = body.completion_request or CompletionRequest(logprobs=0 if _has_logprobs(responses[0]) else None)
    asked = _asked(given, body, responses)
    job = _Job.of_completion(request, body, asked)
    ids, counts = _each(body.prompt_token_ids, body), _each(body.prompt_tokens, body)
    for name, values in (("prompt_token_ids", ids), ("prompt_tokens", counts)):
        if values and len(values) != len(responses):
            raise InvalidRequest(f"{name} needs an entry for each response.", parameter=name)
    prompts = [
        job.prompt(ids[index] if ids else None, counts[index] if counts else None, told)
        for index, told in enumerate(responses)
    ]
    shown = [Prompt(prompt.token_ids) for prompt in prompts]
    if not body.stream:
        return await CompletionAnswer(job.context, asked, await job.start(prompts, responses), shown).respond(request)
    state, earlier = await job.start_chunk(prompts[0], responses[0]), body.stream_state or StreamState()
    answer = CompletionAnswer(job.context, asked, state, shown, earlier.text_offset)
    chunk = answer.chunk(*_numbered(await job.last_choice(answer, state), responses[0]))
    chunk.usage = responses[0].usage or UNSET
    return json_response(DerenderCompletionStreamResponse(chunk, job.next_state(answer.text_offset)))


@dataclass(frozen=True)
class _Job:
    """State of one derender request."""

    request: Request
    body: Body
    retelling: Retelling

    @classmethod
    async def of_chat(
        cls, request: Request, body: Body, asked: ChatCompletionRequest, prompt: Sequence[int] | None
    ) -> _Job:
        """
        Args:
            prompt: the prompt's token ids, or the last of them.

        Raises:
            InvalidRequest: a field is invalid, or it is unknown whether the answer begins with reasoning.
        """
        context = context_of(request)
        context.require_tokenizer("Detokenizing token ids")
        model = context.fleet.model(body.model, GENERATE)
        chat.check(asked, model)
        await beside(request, template_messages, asked.messages)  # a check only: the answer uses them
        tools, _ = await chat.asked_of(request, asked)
        thinking = None
        if context.reasoning:
            if not prompt:
                raise InvalidRequest(
                    "prompt_token_ids is required: the end of the prompt tells whether the answer begins with "
                    "reasoning.",
                    parameter="prompt_token_ids",
                )
            check_token_ids("prompt_token_ids", prompt, model.vocab_size)
            text = await context.tokenizer.decode(prompt)
            thinking = await context.reasoning.thinking(text, continued=chat.continued_texts(asked, asked.messages))
        answer = AnswerContext(tools.tools, tools.choice, bool(thinking and thinking.is_open))
        parsers = chat.parsers_of(context, asked, tools)
        return cls(request, body, Retelling(asked, model, parsers, answer, thinking))

    @classmethod
    def of_completion(cls, request: Request, body: Body, asked: CompletionRequest) -> _Job:
        """
        Raises:
            InvalidRequest: a field is invalid.
        """
        context = context_of(request)
        context.require_tokenizer("Detokenizing token ids")
        model = context.fleet.model(body.model, GENERATE)
        completions.check(asked, model)
        for name in ("echo", "return_prompt_text"):
            if getattr(asked, name):
                raise InvalidRequest(
                    f"{name} is not supported, because only outputs are converted; leave it out.", parameter=name
                )
        return cls(request, body, Retelling(asked, model))

    @property
    def context(self) -> Any:
        """The gateway's components."""
        return context_of(self.request)

    def prompt(
        self, token_ids: Sequence[int] | None, num_tokens: int | None, told: GeneratedResponse
    ) -> TokenizedPrompt:
        """Returns what is known of the prompt of the outputs."""
        ids = token_ids or told.prompt_token_ids or ()
        self.retelling.check(ids)
        if num_tokens is None and not ids:
            num_tokens = told.usage.prompt_tokens if told.usage else 0
        return TokenizedPrompt(tuple(ids), known_tokens=num_tokens)

    async def start(self, prompts: Sequence[TokenizedPrompt], responses: Sequence[GeneratedResponse]) -> RequestState:
        """Starts the conversion of complete outputs.

        Raises:
            InvalidRequest: a response is malformed, or they have different numbers of choices.
        """
        outputs = [self.retelling.outputs(response) for response in responses]
        if len({len(each) for each in outputs}) > 1:
            raise InvalidRequest(
                "The responses must all have the same number of choices.", parameter="generate_responses"
            )
        return await self._retell(prompts, responses[0], [[part] for each in outputs for part in each])

    async def start_chunk(self, prompt: TokenizedPrompt, told: GeneratedResponse) -> RequestState:
        """Starts the conversion of a chunk, including the tokens that came before it."""
        if len(told.choices) > 1:
            raise InvalidRequest("A chunk must have at most one choice; send one at a time.", parameter="choices")
        return await self._retell([prompt], told, [self._parts(told)])

    def _parts(self, told: GeneratedResponse) -> list[GeneratedPart]:
        earlier = self.body.stream_state.token_ids if self.body.stream_state else []
        self.retelling.check(earlier)
        new = [self.retelling.part(choice) for choice in told.choices]
        return [*([GeneratedPart(earlier)] if earlier else []), *new]

    async def _retell(
        self,
        prompts: Sequence[TokenizedPrompt],
        told: GeneratedResponse,
        outputs: Sequence[Sequence[GeneratedPart]],
    ) -> RequestState:
        n = len(outputs) // len(prompts)
        options = self.context.options
        generation = self.retelling.request(prompts, n, told.request_id, tenant_of(self.request), options)
        state: RequestState = await self.context.pipeline.retell(generation, outputs)
        return state

    async def last_choice(self, answer: GenerationAnswer[Any, Choice], state: RequestState) -> Choice | None:
        """Returns what the chunk adds to the answer; None for a chunk without a choice.

        Raises:
            InvalidRequest: the output has ended before the chunk, for example at a stop string.
            Unavailable: its tokens were not detokenized separately from earlier ones.
            QuireError: its tokens could not be detokenized.
        """
        told = self.body.generate_chunk
        parts = len(self._parts(told)) if told else 0
        choice, has_ended = None, False
        async with state.read_by(self.request.receive):
            if parts:
                async for update in updates(state):
                    choice, parts = answer.taken(update), parts - 1
                    has_ended = update.finish is not None
                    if not parts:
                        break
        if state.error:
            raise state.error
        if parts and has_ended:
            raise InvalidRequest(
                "The output ends within the tokens of stream_state, for example at a stop string: no chunk follows.",
                parameter="generate_chunk",
            )
        if parts:
            raise Unavailable("The chunk could not be detokenized separately from earlier ones; send it again.")
        return choice if told and told.choices else None

    def next_state(self, text_offset: int) -> StreamState:
        """Returns the state for the call with the next chunk."""
        earlier = self.body.stream_state.token_ids if self.body.stream_state else []
        choices = self.body.generate_chunk.choices if self.body.generate_chunk else []
        new = [token_id for choice in choices for token_id in choice.token_ids or ()]
        return StreamState(token_ids=[*earlier, *new], text_offset=text_offset)


def _told(body: Body, whole: GeneratedResponse | None, name: str) -> GeneratedResponse:
    """Returns the response or chunk to derender.

    Raises:
        InvalidRequest: it is missing.
    """
    told, parameter = (body.generate_chunk, "generate_chunk") if body.stream else (whole, name)
    if told is None:
        raise InvalidRequest(
            f"{parameter} is required with stream: {str(body.stream).lower()}; it is what /inference/v1/generate "
            "returns.", parameter=parameter,
        )  # fmt: skip
    return told


def _asked(given: Fields, body: Body, responses: Sequence[GeneratedResponse]) -> Fields:
    """Returns the original request, reduced to the fields that affect the answer's form.

    If it has no stop strings, those that ended a choice are used.
    """
    ends = [choice.stop_reason for each in responses for choice in each.choices if isinstance(choice.stop_reason, str)]
    known = not body.stream and given.stop is None and ends
    stop = list(dict.fromkeys(ends)) if known else given.stop
    return msgspec.structs.replace(given, stop=stop, model=body.model or given.model, **_OPEN)


def _has_logprobs(told: GeneratedResponse) -> bool:
    return any(choice.logprobs for choice in told.choices)


def _numbered(choice: Choice | None, told: GeneratedResponse) -> list[Choice]:
    """Returns the choice with its index in the original stream."""
    if choice is None:
        return []
    choice.index = told.choices[0].index
    return [choice]


def _each(values: Any, body: Body) -> list[Any]:
    """Returns one entry per response; with stream, the single entry is not in a list."""
    if values is None:
        return []
    return [values] if body.stream else list(values) if isinstance(values, list) else [values]
