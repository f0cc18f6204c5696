"""`POST /cohere/v2/chat`: Cohere's chat API, built on chat generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, Reasoning, TokenScore, ToolCall
from gateway.answers.events import event
from gateway.answers.scores import LEAST_LOGPROB
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints import chat
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.endpoints.one_answer import CollectedAnswer
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.cohere_chat import (
    CohereAnswer,
    CohereCallDelta,
    CohereCallEnd,
    CohereCallStart,
    CohereChatRequest,
    CohereContentDelta,
    CohereContentEnd,
    CohereContentStart,
    CohereEvent,
    CohereFinish,
    CohereFunction,
    CohereLogprobs,
    CohereMessage,
    CohereMessageEnd,
    CohereMessageStart,
    CohereText,
    CohereThought,
    CohereTokens,
    CohereToolCall,
    CohereUsage,
)
from gateway.requests.cohere_chat import FIELDS, chat_of
from gateway.requests.field_names import told_as
from gateway.requests.state import RequestState
from quire.errors import QuireError


async def cohere_chat(request: Request) -> Response | EventStream:
    """Continues a conversation."""
    body, conversation = await asked(request)
    with told_as(FIELDS):
        generation = await chat.prepare(request, conversation, [conversation.messages])
    context = context_of(request)
    return await _Answer(context, body, await context.pipeline.start(generation)).respond(request)


async def asked(request: Request) -> tuple[CohereChatRequest, ChatCompletionRequest]:
    """Returns the body, and the chat request it converts to.

    Raises:
        InvalidRequest: a field is invalid.
    """
    body = await read_json(request, CohereChatRequest)
    return body, await beside(request, chat_of, body)


class _Answer(CollectedAnswer):
    """Writes the answer to one request."""

    def __init__(self, context: GatewayContext, body: CohereChatRequest, state: RequestState) -> None:
        super().__init__(context, state, streams=bool(body.stream))
        self._logprobs = bool(body.logprobs)
        self._open: CohereContentEnd | CohereCallEnd | None = None  # the end of what is open
        self._kind: type[CohereText | CohereThought] | None = None  # of the open content
        self._num_contents = 0
        self._call = -1  # index of the last tool call
        self._finish = Finish(FinishReason.STOP)
        self._scores: list[TokenScore] = []  # of tokens that no event has told yet

    def opening(self) -> Iterator[bytes]:
        """See EventWriter."""
        yield _event(CohereMessageStart.of(self.state.request.request_id))

    def update(self, update: ChoiceUpdate) -> Iterator[bytes]:
        """See EventWriter."""
        self._num_tokens += len(update.token_ids)
        self._scores += update.scores
        for delta in update.deltas:
            yield from map(_event, self._told(delta))

    def closing(self, error: QuireError | None) -> Iterator[bytes]:
        """See EventWriter."""
        yield from map(_event, self._close())
        if error:
            yield _event(CohereMessageEnd.of("ERROR", self._usage(), error.message))
        else:
            yield _event(CohereMessageEnd.of(self._reason(self._call >= 0), self._usage()))

    def _told(self, delta: Delta) -> Iterator[CohereEvent]:
        match delta:
            case Finish():
                self._finish = delta
            case Reasoning(text):
                yield from self._go_on(CohereThought(""))
                yield self._with_scores(CohereContentDelta.of(self._num_contents - 1, thinking=text))
            case Content(text):
                yield from self._go_on(CohereText(""))
                yield self._with_scores(CohereContentDelta.of(self._num_contents - 1, text=text))
            case ToolCall(index, arguments, identity, name):
                if index != self._call:
                    yield from self._close()
                    self._call, self._open = index, CohereCallEnd(index)
                    yield CohereCallStart.of(index, CohereToolCall(identity, CohereFunction(name, "")))
                if arguments:
                    yield CohereCallDelta.of(index, arguments)

    def _go_on(self, content: CohereText | CohereThought) -> Iterator[CohereEvent]:
        """Opens a content, unless one of the same type is already open."""
        if self._kind is type(content):
            return
        yield from self._close()
        self._kind, self._open = type(content), CohereContentEnd(self._num_contents)
        yield CohereContentStart.of(self._num_contents, content)
        self._num_contents += 1

    def _close(self) -> Iterator[CohereEvent]:
        if self._open is not None:
            yield self._open
        self._open = self._kind = None

    def _with_scores(self, piece: CohereContentDelta) -> CohereContentDelta:
        if self._scores:
            piece.logprobs, self._scores = _logprobs(self._scores), []
        return piece

    def _whole(self, choice: CollectedChoice) -> CohereAnswer:
        self._finish = choice.finish
        contents = [
            CohereText(part.text) if isinstance(part, Content) else CohereThought(part.text)
            for part in choice.parts
            if not isinstance(part, ToolCall)
        ]
        calls = [CohereToolCall(call.id, CohereFunction(call.name, call.arguments)) for call in choice.tool_calls]
        return CohereAnswer(
            self.state.request.request_id, self._reason(bool(calls)),
            CohereMessage(contents or UNSET, calls or UNSET), self._usage(),
            [_logprobs([score]) for score in choice.scores] if self._logprobs else UNSET,
        )  # fmt: skip

    def _usage(self) -> CohereUsage:
        tokens = CohereTokens(self.state.prompt_tokens, self._num_tokens)
        told = self._context.options.enable_prompt_tokens_details
        return CohereUsage(tokens, tokens, self.state.cached_tokens if told else UNSET)

    def _reason(self, called: bool) -> CohereFinish:
        match self._finish.reason:
            case FinishReason.LENGTH:
                return "MAX_TOKENS"
            case FinishReason.ABORT:
                return "ERROR"
        if called:
            return "TOOL_CALL"
        return "STOP_SEQUENCE" if isinstance(self._finish.stop_reason, str) else "COMPLETE"


def _event(content: CohereEvent) -> bytes:
    return event(content, str(type(content).__struct_config__.tag))


def _logprobs(scores: Sequence[TokenScore]) -> CohereLogprobs:
    return CohereLogprobs(
        b"".join(score.texts[0] for score in scores).decode("utf-8", "replace"),
        [score.token_ids[0] for score in scores],
        [max(score.logprobs[0], LEAST_LOGPROB) for score in scores],
    )
