"""Formats what was said in a recording, streamed or whole."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.coalescing import Coalesced
from gateway.answers.collecting import collect
from gateway.answers.deltas import ChoiceUpdate, content_of
from gateway.answers.events import DONE, event
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext
from gateway.endpoints import large
from gateway.errors import error_body
from gateway.protocol.common import PromptTokensDetails, Usage
from gateway.protocol.transcription import (
    Duration,
    SpeechChoice,
    SpeechChunk,
    SpeechDelta,
    Transcription,
    TranscriptionRequest,
    Translation,
    TranslationRequest,
)
from gateway.requests.state import RequestState
from quire.errors import QuireError


class TranscriptionAnswer:
    """Writes the answer to one request."""

    def __init__(self, context: GatewayContext, body: TranscriptionRequest, state: RequestState) -> None:
        self._context, self._body, self._state = context, body, state
        self._translates = isinstance(body, TranslationRequest)
        self._created = int(time.time())
        self._num_tokens = 0  # written so far

    async def respond(self, request: Request) -> Response | EventStream:
        """Returns the response, streamed or whole as requested."""
        options = self._context.options
        if self._body.stream:
            interval = options.stream_interval
            writer = Coalesced(self, interval) if interval > 1 else self
            return EventStream(self._state, writer, options.sse_keep_alive_interval)
        (choice,) = await collect(self._state, 1, request.receive)
        text = choice.content.strip()
        if self._body.response_format == "text":
            return Response(f"{text}\n", media_type="text/plain")
        return await large.answer(request, len(choice.token_ids), lambda: self._whole(text))

    def opening(self) -> Iterator[bytes]:
        """See EventWriter. There are no events before the text."""
        return iter(())

    def update(self, update: ChoiceUpdate) -> Iterator[bytes]:
        """See EventWriter."""
        self._num_tokens += len(update.token_ids)
        text, finish = content_of(update.deltas), update.finish
        if text or finish:
            choice = SpeechChoice(SpeechDelta(text))
            if finish:
                choice.finish_reason, choice.stop_reason = finish.reason.value, finish.stop_reason
            yield event(self._chunk([choice], with_usage=self._body.stream_continuous_usage_stats))

    def closing(self, error: QuireError | None) -> Iterator[bytes]:
        """See EventWriter."""
        if error:
            yield event(error_body(error))
        elif self._body.stream_include_usage or self._context.options.enable_force_include_usage:
            yield event(self._chunk([], with_usage=True))
        yield DONE

    def _chunk(self, choices: Sequence[SpeechChoice], *, with_usage: bool) -> SpeechChunk:
        request, kind = self._state.request, "translation" if self._translates else "transcription"
        chunk = SpeechChunk(
            f"{'trsl' if self._translates else 'trsc'}-{request.request_id}", f"{kind}.chunk", self._created,
            request.answering_model, list(choices),
        )  # fmt: skip
        if with_usage:
            chunk.usage = self._usage()
        return chunk

    def _usage(self) -> Usage:
        prompt_tokens = self._state.prompt_tokens
        usage = Usage(prompt_tokens, prompt_tokens + self._num_tokens, self._num_tokens)
        if self._context.options.enable_prompt_tokens_details:
            usage.prompt_tokens_details = PromptTokensDetails(self._state.cached_tokens)
        return usage

    def _whole(self, text: str) -> Transcription | Translation:
        if self._translates:
            return Translation(text)
        return Transcription(text, Duration(math.ceil(self._state.request.prompts[0].audio_seconds)))
