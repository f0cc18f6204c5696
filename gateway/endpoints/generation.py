"""Shared code of the generating endpoints: one request's answer, streamed or whole."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.coalescing import Coalesced
from gateway.answers.collecting import CollectedChoice, collect
from gateway.answers.deltas import ChoiceUpdate, Finish, PromptScore
from gateway.answers.events import DONE, event
from gateway.answers.stream import EventStream, UpdateSource
from gateway.context import GatewayContext
from gateway.endpoints import kv_transfer, large
from gateway.errors import error_body
from gateway.metrics.orca import load_report
from gateway.protocol.chat import ChatChunkChoice, ChatCompletionChunk
from gateway.protocol.common import CompletionTokensDetails, GenerationFields, PromptTokensDetails, Usage, WeightSpan
from gateway.protocol.completions import Completion, CompletionChoice
from gateway.protocol.generate import GenerateChoice, GenerateChunk
from gateway.requests.caller import load_format
from gateway.requests.constraint import NamedConstraint
from gateway.requests.state import RequestState
from quire.errors import QuireError
from quire.structured.base import Constraint

Body = TypeVar("Body", bound=GenerationFields)
Choice = TypeVar("Choice", bound=ChatChunkChoice | CompletionChoice | GenerateChoice)
Chunk = ChatCompletionChunk | Completion | GenerateChunk


async def compiled(context: GatewayContext, wanted: NamedConstraint | None) -> Constraint | None:
    """Compiles the constraint on a request's outputs for the engines; None if there is none."""
    return None if wanted is None else await context.tokenizer.compile_constraint(wanted)


class GenerationAnswer(ABC, Generic[Body, Choice]):
    """One request's answer. Each API has a subclass that defines the form of its choices, chunks and whole answers."""

    def __init__(self, context: GatewayContext, body: Body, state: RequestState, kind: str) -> None:
        """
        Args:
            kind: prefix of the answer's id.
        """
        self._context = context
        self._body = body
        self._state = state
        self._request = state.request
        self._id = f"{kind}-{self._request.request_id}"
        self._created = int(time.time())
        without_text = context.options.skip_tokenizer_init
        as_ids = without_text or context.options.return_tokens_as_token_ids
        self._as_ids = bool(body.return_tokens_as_token_ids or as_ids)
        self._with_ids = bool(body.return_token_ids or without_text)
        options = body.stream_options
        self._usage_at_end = context.options.enable_force_include_usage or bool(options and options.include_usage)
        self._usage_always = bool(options and options.include_usage and options.continuous_usage_stats)
        self._num_tokens = 0  # written so far
        thinking = self._request.thinking
        self._thinking = thinking.counters(self._request.choices) if thinking else ()

    @abstractmethod
    def opening(self) -> Iterator[bytes]:
        """Returns events to send before any token."""

    @abstractmethod
    def _choice(self, update: ChoiceUpdate) -> Choice:
        """Returns a chunk's choice with the fields specific to this API."""

    @abstractmethod
    def chunk(self, *choices: Choice) -> Chunk:
        """Builds a chunk of the stream."""

    @abstractmethod
    def _whole(self, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]) -> Any:
        """Builds the whole answer.

        Args:
            texts: bytes of each token in the prompts' scores.
        """

    def _source(self) -> UpdateSource[ChoiceUpdate]:
        """Returns the source of a stream's updates."""
        return self._state

    async def respond(self, request: Request) -> Response | EventStream:
        """Returns the response, streamed or whole as requested."""
        if self._body.stream:
            options = self._context.options
            interval = self._body.stream_interval or options.stream_interval
            writer = Coalesced(self, interval) if interval > 1 else self
            return EventStream(self._source(), writer, options.sse_keep_alive_interval)
        choices = await collect(self._state, self._request.choices, request.receive)
        self._num_tokens = sum(len(choice.token_ids) for choice in choices)
        texts = await self._texts([choice.prompt_scores for choice in choices])
        response = await large.answer(request, self._size(choices), lambda: self._made(choices, texts))
        queued = self._context.pipeline.router_streams.queued
        response.headers.update(load_report(load_format(request), self._request.model, self._context.fleet, queued))
        return response

    def _made(self, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]) -> Any:
        for counter, choice in zip(self._thinking, choices, strict=False):
            counter.advance(choice.token_ids)
        return self._whole(choices, texts)

    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        """Returns an update's event; none for an update with nothing to show."""
        choice = self.taken(update)
        return (event(self.chunk(choice)),) if self._shows(update) else ()

    def taken(self, update: ChoiceUpdate) -> Choice:
        """Returns what an update adds to its choice; must be called for each update of a choice, in order."""
        self._num_tokens += len(update.token_ids)
        if self._thinking:
            self._thinking[update.index].advance(update.token_ids)
        choice = self._choice(update)
        if self._with_ids:
            choice.token_ids = list(update.token_ids)
        if finish := update.finish:
            choice.finish_reason = self._reason(update.index, finish)
            choice.stop_reason = finish.stop_reason
            choice.weight_versions = self._versions(update.weight_versions)
        return choice

    def _reason(self, index: int, finish: Finish) -> str:
        """Returns the finish reason as named by this API."""
        return finish.reason.value

    def _shows(self, update: ChoiceUpdate) -> bool:
        return bool(update.deltas or update.scores or self._with_ids)

    def closing(self, error: QuireError | None) -> Iterator[bytes]:
        """Yields the error, or the usage and where the KV blocks are if requested; then the end marker."""
        transfer = kv_transfer.told(self._context, self._state)
        if error:
            yield event(error_body(error))
        elif self._usage_at_end or transfer is not UNSET:
            chunk = self.chunk()
            chunk.kv_transfer_params = transfer
            if self._usage_at_end:
                chunk.usage = self._usage()
            yield event(chunk)
        yield DONE

    def _routed(self, rows: Sequence[bytes]) -> str | UnsetType | None:
        """Returns a choice's routed experts, if engines return them."""
        form = self._request.routed_experts
        return UNSET if form is None else form.encode(rows)

    def _versions(self, spans: Sequence[WeightSpan]) -> Sequence[WeightSpan] | UnsetType:
        """Returns which weights computed a choice's tokens, if requested."""
        return spans if self._request.with_weight_versions else UNSET

    def _usage(self) -> Usage:
        """Returns the request's final usage."""
        usage = self._usage_so_far()
        if self._context.options.enable_prompt_tokens_details:
            usage.prompt_tokens_details = PromptTokensDetails(self._state.cached_tokens)
        if self._request.thinking:
            reasoning_tokens = sum(counter.num_tokens for counter in self._thinking)
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens)
        return usage

    def _usage_so_far(self) -> Usage:
        prompt_tokens = self._state.prompt_tokens
        return Usage(prompt_tokens, prompt_tokens + self._num_tokens, self._num_tokens)

    def _usage_of_chunk(self) -> Usage | UnsetType:
        return self._usage_so_far() if self._usage_always else UNSET

    @property
    def _fingerprint(self) -> str | None:
        return self._context.fleet.system_fingerprints.get(self._request.requested_model)

    def _fingerprint_of_chunk(self, choices: Sequence[Choice]) -> str | UnsetType | None:
        """Chunks that end a choice have it, and the one with the usage."""
        return self._fingerprint if all(choice.finish_reason for choice in choices) else UNSET

    async def _texts(self, scores: Sequence[Sequence[PromptScore]]) -> Mapping[int, bytes]:
        """Returns the bytes of each token in prompts' scores."""
        if not any(scores):
            return {}
        return await self._context.tokenizer.token_bytes(await self._context.large_requests.run(_scored_ids, scores))

    def _size(self, choices: Sequence[CollectedChoice]) -> int:
        """Estimates how many tokens the answer contains, including logprob alternatives."""
        size = self._state.prompt_tokens * self._request.n if self._with_ids else 0
        for choice in choices:
            size += len(choice.token_ids) + sum(len(score.token_ids) for score in choice.scores)
            if choice.prompt_scores:
                size += len(choice.prompt_scores) * len(choice.prompt_scores[0].token_ids)
        return size


def _scored_ids(scores: Sequence[Sequence[PromptScore]]) -> set[int]:
    return {token_id for positions in scores for position in positions for token_id in position.token_ids}
