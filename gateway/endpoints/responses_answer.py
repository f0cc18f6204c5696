"""Formats an answer for OpenAI's Responses API: items of reasoning, text and tool calls, one at a time.

Whole answers are built the same way as streamed ones; their events are discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import updates
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, Reasoning, TokenScore, ToolCall
from gateway.answers.events import event
from gateway.answers.scores import chat_logprobs
from gateway.context import GatewayContext
from gateway.endpoints import kv_transfer, large
from gateway.endpoints.one_answer import OneAnswer
from gateway.protocol.chat import ChatTokenLogprob
from gateway.protocol.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponsesEvent,
    TextDelta,
    TextDone,
)
from gateway.protocol.responses import (
    CustomToolCallItem,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseBody,
    ResponseFailure,
    ResponseLogprob,
    ResponsesFormat,
    ResponsesReasoning,
    ResponsesRequest,
    ResponseStatus,
    ResponsesText,
    ResponseTopLogprob,
    ResponseUsage,
)
from gateway.requests.response_tools import ClientTool, client_tools, offered
from gateway.requests.state import RequestState
from gateway.tool_parsers.custom_input import CustomInput
from quire.errors import Cancelled, InvalidRequest, Overloaded, QuireError
from quire.reasoning import ReasoningTracker, StretchCounter


class ResponsesAnswer(OneAnswer):
    """Writes the answer to one request."""

    def __init__(
        self, context: GatewayContext, body: ResponsesRequest, state: RequestState, identity: str, *, is_stored: bool
    ) -> None:
        """
        Args:
            identity: hex digits from which the ids of the response and of its items are made.
            is_stored: whether the response is stored.
        """
        super().__init__(context, state, streams=bool(body.stream))
        self._identity = identity
        self._as_ids = bool(body.return_tokens_as_token_ids or context.options.return_tokens_as_token_ids)
        thinking = state.request.thinking
        self._thinking = next(iter(thinking.counters(1)), None) if thinking else None
        self._num_events = 0
        self._pieces: list[str] = []  # text of the open item
        self._scores: list[ResponseLogprob] = []  # logprobs of the open item
        self._waiting: list[TokenScore] = []  # scores of tokens whose text is not complete yet
        self._item: OutputItem | None = None  # the open item
        self._call = -1  # index of the last tool call
        self._tools = client_tools(body.tools or ())
        self._input = CustomInput()  # of the open call of a custom tool
        self._finish: Finish | None = None
        self.body = _begun(body, state, f"resp_{identity}", is_stored)

    async def _read(self, request: Request) -> Callable[[], Any]:
        await self.read_whole(request)
        return lambda: self.body

    async def whole(self, request: Request) -> Response:
        """Returns the whole response."""
        return await large.answer(request, self._num_tokens, lambda: self.body)

    async def read_whole(self, request: Request) -> None:
        """Reads the whole output into the body.

        Raises:
            QuireError: the request failed.
            Cancelled: the client has disconnected.
        """
        async with self.state.read_by(request.receive):
            async for update in updates(self.state):
                for _ in self._told_by(update):
                    pass
        if self.state.error:
            raise self.state.error
        if self._finish is None:
            raise Cancelled("The client has disconnected.")
        for _ in self._ended(None):
            pass

    def opening(self) -> Iterator[bytes]:
        """See EventWriter."""
        yield self._event(ResponseCreated(response=self.body))
        yield self._event(ResponseInProgress(response=self.body))

    def update(self, update: ChoiceUpdate) -> Iterator[bytes]:
        """See EventWriter."""
        return map(self._event, self._told_by(update))

    def closing(self, error: QuireError | None) -> Iterator[bytes]:
        """See EventWriter."""
        return map(self._event, self._ended(error))

    def _event(self, content: ResponsesEvent) -> bytes:
        content.sequence_number = self._num_events
        self._num_events += 1
        return event(content, str(type(content).__struct_config__.tag))

    def _told_by(self, update: ChoiceUpdate) -> Iterator[ResponsesEvent]:
        self._num_tokens += len(update.token_ids)
        self._waiting += self._answering(update)
        for delta in update.deltas:
            yield from self._told(delta)

    def _answering(self, update: ChoiceUpdate) -> Iterable[TokenScore]:
        """Returns the scores of the update's tokens that are not reasoning; counts those that are."""
        if self._thinking is None or not update.scores:
            if self._thinking:
                self._thinking.advance(update.token_ids)
            return update.scores
        return list(compress(update.scores, map(self._answers, update.token_ids)))

    def _answers(self, token_id: int) -> bool:
        """Counts one more token, and returns whether it belongs to the answer."""
        thinking = self._thinking
        assert thinking is not None
        before = thinking.num_tokens
        thinking.advance((token_id,))
        return thinking.answers if isinstance(thinking, ReasoningTracker) else thinking.num_tokens == before

    def _told(self, delta: Delta) -> Iterator[ResponsesEvent]:
        match delta:
            case Finish():
                self._finish = delta
            case Reasoning(text):
                if not isinstance(self._item, ReasoningItem):
                    yield from self._close()
                    yield from self._open(ReasoningItem(self._id("rs"), [], "in_progress"))
                    yield PartAdded(**self._place, part=ReasoningText(""))
                self._pieces.append(text)
                yield ReasoningDelta(**self._place, delta=text)
            case Content(text):
                later: list[TokenScore] = []
                if not isinstance(self._item, OutputMessage):
                    yield from self._close()
                    self._waiting, later = self._of_text(text)
                    yield from self._open(OutputMessage(self._id("msg"), [], "in_progress"))
                    yield PartAdded(**self._place, part=OutputText(""))
                self._pieces.append(text)
                yield TextDelta(**self._place, delta=text, logprobs=self._take_scores())
                self._waiting += later
            case ToolCall(index, arguments, identity, name):
                if index != self._call:
                    yield from self._close()
                    self._call = index
                    yield from self._open(self._begun_call(identity, name))
                if isinstance(self._item, CustomToolCallItem):
                    yield from self._told_input(self._input.feed(arguments))
                elif arguments:
                    self._pieces.append(arguments)
                    yield ArgumentsDelta(**self._place, delta=arguments)

    def _begun_call(self, identity: str, name: str) -> FunctionCallItem | CustomToolCallItem:
        tool = self._tools.get(name, ClientTool(name))
        if tool.is_custom:
            self._input = CustomInput()
            return CustomToolCallItem(self._id("ctc"), identity, tool.name, "", "in_progress", tool.namespace)
        return FunctionCallItem(self._id("fc"), identity, tool.name, "", "in_progress", tool.namespace)

    def _told_input(self, text: str) -> Iterator[ResponsesEvent]:
        """Adds to the input of the open call of a custom tool."""
        if text:
            self._pieces.append(text)
            yield CustomInputDelta(**self._place, delta=text)

    @property
    def _place(self) -> dict[str, Any]:
        """Id and index of the open item."""
        assert self._item is not None
        return {"item_id": self._item.id, "output_index": len(self.body.output)}

    def _id(self, kind: str) -> str:
        """Returns the id for the next item."""
        return f"{kind}_{self._identity}_{len(self.body.output)}"

    def _take_scores(self) -> list[ResponseLogprob]:
        """Takes the waiting scores, whose text is now complete."""
        taken = [_logprob(token) for token in chat_logprobs(self._waiting, self._as_ids).content]
        self._waiting.clear()
        self._scores += taken
        return taken

    def _of_text(self, text: str) -> tuple[list[TokenScore], list[TokenScore]]:
        """Splits the waiting scores: those of the text that begins a message, and those of later text.

        Scores before the message belong to tool calls or channel headers, and are dropped.
        """
        waiting = self._waiting
        if not self.state.request.token_by_token:
            return waiting, []
        missing, count = len(text.encode()), 0
        follows = self._call >= 0 or isinstance(self._thinking, StretchCounter)
        while missing > 0 and count < len(waiting):
            missing -= len(waiting[-count - 1 if follows else count].texts[0])
            count += 1
        return (waiting[len(waiting) - count :], []) if follows else (waiting[:count], waiting[count:])

    def _open(self, item: OutputItem) -> Iterator[ResponsesEvent]:
        self._item = item
        yield ItemAdded(output_index=len(self.body.output), item=item)

    def _close(self, status: ItemStatus = "completed") -> Iterator[ResponsesEvent]:
        """Ends the open item, if any. If the answer ends with it, it gets all remaining scores."""
        if self._item is None:
            return
        if isinstance(self._item, OutputMessage) and self._finish and self._waiting:
            yield TextDelta(**self._place, delta="", logprobs=self._take_scores())
        if isinstance(self._item, CustomToolCallItem):
            yield from self._told_input(self._input.end())
        item, text = self._item, "".join(self._pieces)
        match item:
            case ReasoningItem():
                item.content = [ReasoningText(text)]
                yield ReasoningDone(**self._place, text=text)
                yield PartDone(**self._place, part=item.content[0])
            case OutputMessage():
                item.content = [OutputText(text, self._scores)]
                yield TextDone(**self._place, text=text, logprobs=self._scores)
                yield PartDone(**self._place, part=item.content[0])
            case FunctionCallItem():
                item.arguments = text
                yield ArgumentsDone(**self._place, name=item.name, arguments=text)
            case CustomToolCallItem():
                item.input = text
                yield CustomInputDone(**self._place, input=text)
        item.status = status
        yield ItemDone(output_index=len(self.body.output), item=item)
        self.body.output.append(item)
        self._item, self._pieces, self._scores = None, [], []

    def _ended(self, error: QuireError | None) -> Iterator[ResponsesEvent]:
        """Ends the response: completed, incomplete, cancelled or failed."""
        status = self._status(error)
        yield from self._close("completed" if status == "completed" else "incomplete")
        body = self.body
        body.status, body.usage, body.completed_at = status, self._usage(), int(time.time())
        body.kv_transfer_params = kv_transfer.told(self._context, self.state)
        if error:
            body.error = ResponseFailure(_code(error), error.message)
            yield ResponseFailed(response=body)
        elif status == "completed":
            yield ResponseCompleted(response=body)
        else:
            if status == "incomplete":
                body.incomplete_details = IncompleteDetails("max_output_tokens")
            yield ResponseIncomplete(response=body)

    def _status(self, error: QuireError | None) -> ResponseStatus:
        if error:
            return "failed"
        if self._finish is None or self._finish.reason is FinishReason.ABORT:
            return "cancelled"
        return "incomplete" if self._finish.reason is FinishReason.LENGTH else "completed"

    def _usage(self) -> ResponseUsage:
        prompt_tokens = self.state.prompt_tokens
        cached = self.state.cached_tokens if self._context.options.enable_prompt_tokens_details else 0
        thought = self._thinking.num_tokens if self._thinking else 0
        return ResponseUsage(
            prompt_tokens, self._num_tokens, prompt_tokens + self._num_tokens, InputTokensDetails(cached),
            OutputTokensDetails(thought),
        )  # fmt: skip


def _begun(body: ResponsesRequest, state: RequestState, identity: str, is_stored: bool) -> ResponseBody:
    """Builds the initial response, without output."""
    asked = body.text or ResponsesText()
    sampling = state.request.sampling
    return ResponseBody(
        id=identity,
        created_at=int(time.time()),
        model=state.request.answering_model,
        status="in_progress",
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        tools=offered(body.tools or ()),
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        max_tool_calls=body.max_tool_calls,
        text=ResponsesText(format=asked.format or ResponsesFormat(type="text"), verbosity=asked.verbosity),
        reasoning=body.reasoning or ResponsesReasoning(),
        max_output_tokens=body.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        metadata=body.metadata or {},
        background=bool(body.background),
        store=is_stored,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


def _logprob(token: ChatTokenLogprob) -> ResponseLogprob:
    others = [ResponseTopLogprob(each.token, each.logprob, each.bytes or []) for each in token.top_logprobs]
    return ResponseLogprob(token.token, token.logprob, token.bytes or [], others)


def _code(error: QuireError) -> str:
    """Returns OpenAI's code for an error."""
    if isinstance(error, Overloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
