"""Formats the answer to a conversation, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import ToolChoice
from gateway.answers.deltas import (
    ChoiceUpdate,
    Content,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    TokenScore,
    ToolCall,
)
from gateway.answers.events import event
from gateway.answers.scores import AnswerScores, chat_logprobs, prompt_logprobs
from gateway.context import GatewayContext
from gateway.endpoints import kv_transfer
from gateway.endpoints.generation import GenerationAnswer
from gateway.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatFields,
    ChatMessage,
    ChatToolCall,
    ChatToolCallPiece,
    FunctionCall,
)
from gateway.requests.messages import texts_of
from gateway.requests.state import RequestState


class ChatAnswer(GenerationAnswer[ChatFields, ChatChunkChoice]):
    """The answer to a conversation."""

    def __init__(
        self,
        context: GatewayContext,
        body: ChatFields,
        messages: Sequence[Mapping[str, Any]],
        state: RequestState,
        prompt_text: str | UnsetType,
    ) -> None:
        """
        Args:
            messages: of the conversation, or of the first one of several.
            prompt_text: the rendered prompt, if requested.
        """
        super().__init__(context, body, state, "chatcmpl")
        self.role = _role(body, messages, context.options.response_role)
        self._prompt_text = prompt_text
        self._echo = _echo_text(messages, self.role) if body.echo else ""
        self._callers: set[int] = set()  # choices that call tools
        marks = self._request.thinking.marks if self._request.thinking else None
        self._without_thinking = (
            [AnswerScores(marks) for _ in range(self._request.choices)]
            if marks and body.logprobs and body.include_reasoning is False
            else ()
        )

    def opening(self) -> Iterator[bytes]:
        """The role of each choice, and its echo."""
        for index in range(self._request.n):
            chunk = self.chunk(ChatChunkChoice(index, ChatDelta(role=self.role, content="")))
            if self._with_ids:
                chunk.prompt_token_ids = list(self._request.prompts[0].token_ids)
            chunk.prompt_text = self._prompt_text
            yield event(chunk)
            if self._echo:
                yield event(self.chunk(ChatChunkChoice(index, ChatDelta(content=self._echo))))

    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        """See GenerationAnswer. The end comes in a chunk after a call's last piece, not in the same one.

        OpenAI's Python client looks for the end of a call in the chunks after its first, and misses it for a call that
        arrives in a single chunk.
        """
        choice = self.taken(update)
        if choice.delta.tool_calls and choice.finish_reason:
            end = ChatChunkChoice(choice.index, ChatDelta(), None, choice.finish_reason, choice.stop_reason)
            end.weight_versions = choice.weight_versions
            choice.finish_reason, choice.stop_reason, choice.weight_versions = None, UNSET, UNSET
            return event(self.chunk(choice)), event(self.chunk(end))
        return (event(self.chunk(choice)),) if update.deltas or choice.logprobs or self._with_ids else ()

    def _choice(self, update: ChoiceUpdate) -> ChatChunkChoice:
        choice = ChatChunkChoice(update.index, _delta(update.deltas))
        if choice.delta.tool_calls:
            self._callers.add(update.index)
        if scores := self._told(update.index, update.token_ids, update.scores):
            choice.logprobs = chat_logprobs(scores, self._as_ids)
        return choice

    def _told(self, index: int, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> Sequence[TokenScore]:
        return self._without_thinking[index].take(token_ids, scores) if self._without_thinking else scores

    def chunk(self, *choices: ChatChunkChoice) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            self._id, "chat.completion.chunk", self._created, self._request.answering_model, list(choices),
            self._usage_of_chunk(), self._fingerprint_of_chunk(choices),
        )  # fmt: skip

    def _whole(self, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]) -> ChatCompletion:
        scores = choices[0].prompt_scores
        return ChatCompletion(
            self._id, "chat.completion", self._created, self._request.answering_model,
            [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            self._usage(),
            self._fingerprint,
            prompt_logprobs(scores, texts) if self._body.prompt_logprobs is not None else None,
            list(self._request.prompts[0].token_ids) if self._with_ids else None,
            self._prompt_text,
            kv_transfer.told(self._context, self._state),
        )  # fmt: skip

    def _whole_choice(self, index: int, choice: CollectedChoice) -> ChatChoice:
        if choice.tool_calls:
            self._callers.add(index)
        thinks = bool(self._thinking and self._thinking[index].num_tokens)
        scores = self._told(index, choice.token_ids, choice.scores)
        return ChatChoice(
            index,
            _message(self.role, self._echo, choice, thinks),
            chat_logprobs(scores, self._as_ids) if self._body.logprobs else None,
            self._reason(index, choice.finish),
            choice.finish.stop_reason,
            choice.token_ids if self._with_ids else None,
            self._routed(choice.routed_experts),
            self._versions(choice.weight_versions),
        )

    def _reason(self, index: int, finish: Finish) -> str:
        called = index in self._callers and self._request.answer_context.tool_choice is not ToolChoice.NAMED
        return "tool_calls" if called and finish.reason is FinishReason.STOP else finish.reason.value


def _message(role: str, echo: str, choice: CollectedChoice, thinks: bool) -> ChatMessage:
    """Builds a choice's message. Its content is null if it has only reasoning (shown or omitted) or tool calls."""
    message = ChatMessage(role, echo + choice.content, reasoning=choice.reasoning or None)
    if choice.tool_calls:
        message.tool_calls = [
            ChatToolCall(call.id, FunctionCall(call.arguments, call.name)) for call in choice.tool_calls
        ]
    if message.reasoning or thinks or choice.tool_calls:
        message.content = message.content or None
    return message


def _delta(deltas: Sequence[Delta]) -> ChatDelta:
    """Builds the delta of a chunk; its content may be empty if there is nothing else.

    It has at most one piece per call: clients take several pieces in a call's first chunk for separate calls.
    """
    if len(deltas) == 1 and isinstance(only := deltas[0], Content):
        return ChatDelta(content=only.text)  # the usual case
    content, reasoning = "", ""
    calls: list[ChatToolCallPiece] = []
    for part in deltas:
        if isinstance(part, Content):
            content += part.text
        elif isinstance(part, Reasoning):
            reasoning += part.text
        elif isinstance(part, ToolCall) and calls and calls[-1].index == part.index:
            calls[-1].function.arguments += part.arguments
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


def _role(body: ChatFields, messages: Sequence[Mapping[str, Any]], response_role: str) -> str:
    """Role of the answer. If no new turn is opened, it is that of the last message, which is continued."""
    return response_role if body.add_generation_prompt else str(messages[-1]["role"])


def _echo_text(messages: Sequence[Mapping[str, Any]], role: str) -> str:
    """The last message's text, if it has the role of the answer."""
    return "\n".join(texts_of(messages[-1])) if messages[-1]["role"] == role else ""
