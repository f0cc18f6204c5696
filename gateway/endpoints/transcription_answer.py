"""Formats what was said in a recording, streamed or whole."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.coalescing import Coalesced
from gateway.answers.collecting import CollectedChoice
from gateway.answers.deltas import ChoiceUpdate, Finish, FinishReason, content_of
from gateway.answers.events import DONE, event
from gateway.answers.seams import JoinedTexts
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext
from gateway.endpoints import large
from gateway.endpoints.timed_transcript import SUBTITLES, TimedTranscript
from gateway.endpoints.transcriber import Transcriber
from gateway.errors import error_body
from gateway.protocol.common import PromptTokensDetails, Usage
from gateway.protocol.transcription import (
    Duration,
    SpeechChoice,
    SpeechChunk,
    SpeechDelta,
    Transcription,
    Translation,
    TranslationRequest,
    VerboseTranscription,
)
from gateway.requests.chain import AnswerChain, collect_chain
from quire.errors import QuireError


class TranscriptionAnswer:
    """Writes the answer to one request."""

    def __init__(self, context: GatewayContext, transcriber: Transcriber, chain: AnswerChain) -> None:
        """
        Args:
            chain: the answers for the pieces of the recording.
        """
        self._context, self._transcriber, self._chain = context, transcriber, chain
        self._body = transcriber.asked.body
        self._kind = "translation" if isinstance(self._body, TranslationRequest) else "transcription"
        self._created = int(time.time())
        self._texts = JoinedTexts()
        self._num_tokens = 0  # written so far
        self._written: list[str] = []  # the text of a stream so far
        self._finish: Finish | None = None  # of the pieces so far

    async def respond(self, request: Request) -> Response | EventStream:
        """Returns the response, streamed or whole as requested."""
        options = self._context.options
        if self._body.stream:
            interval = options.stream_interval
            writer = Coalesced(self, interval) if interval > 1 else self
            return EventStream(self._chain, writer, options.sse_keep_alive_interval)
        choices = await collect_chain(self._chain, request.receive)
        form = self._body.response_format
        if form in SUBTITLES:
            _, media_type = SUBTITLES[form]
            return Response(self._timed(choices).subtitles(form), media_type=media_type)
        if form == "text":
            return Response(f"{self._text(choices)}\n", media_type="text/plain")
        num_tokens = sum(len(choice.token_ids) for choice in choices)
        return await large.answer(request, num_tokens, lambda: self._whole(choices))

    def opening(self) -> Iterator[bytes]:
        """See EventWriter. There are no events before the text."""
        return iter(())

    def update(self, update: ChoiceUpdate) -> Iterator[bytes]:
        """See EventWriter. The end of a piece is told only once it is known to be the last one."""
        self._num_tokens += len(update.token_ids)
        if update.finish:
            is_cut = self._finish is not None and self._finish.reason is FinishReason.LENGTH
            self._finish = self._finish if is_cut and update.finish.reason is FinishReason.STOP else update.finish
        if text := self._texts.add(update.index, content_of(update.deltas)):
            self._written.append(text)
            chunk = self._chunk_of(SpeechChoice(SpeechDelta(text)))
            chunk.type, chunk.delta = "transcript.text.delta", text
            yield event(chunk)

    def closing(self, error: QuireError | None) -> Iterator[bytes]:
        """See EventWriter."""
        if error:
            yield event(error_body(error))
        else:
            yield from self._end()
        yield DONE

    def _end(self) -> Iterator[bytes]:
        if finish := self._finish:
            chunk = self._chunk_of(SpeechChoice(SpeechDelta(""), finish.reason.value, finish.stop_reason))
            chunk.type, chunk.text = "transcript.text.done", "".join(self._written)
            yield event(chunk)
        if self._body.stream_include_usage or self._context.options.enable_force_include_usage:
            yield event(self._chunk([], with_usage=True))

    def _chunk_of(self, choice: SpeechChoice) -> SpeechChunk:
        return self._chunk([choice], with_usage=self._body.stream_continuous_usage_stats)

    def _chunk(self, choices: Sequence[SpeechChoice], *, with_usage: bool) -> SpeechChunk:
        chain, prefix = self._chain, "trsl" if self._kind == "translation" else "trsc"
        chunk = SpeechChunk(
            f"{prefix}-{chain.request_id}", f"{self._kind}.chunk", self._created, chain.answering_model, list(choices)
        )  # fmt: skip
        if with_usage:
            chunk.usage = self._usage()
        return chunk

    def _usage(self) -> Usage:
        prompt_tokens = self._chain.prompt_tokens
        usage = Usage(prompt_tokens, prompt_tokens + self._num_tokens, self._num_tokens)
        if self._context.options.enable_prompt_tokens_details:
            usage.prompt_tokens_details = PromptTokensDetails(self._chain.cached_tokens)
        return usage

    def _whole(self, choices: Sequence[CollectedChoice]) -> Transcription | Translation | VerboseTranscription:
        if self._body.response_format == "verbose_json":
            task, asked = "translate" if self._kind == "translation" else "transcribe", self._transcriber.asked
            return self._timed(choices).verbose(task, asked.language, self._body.temperature)
        if self._kind == "translation":
            return Translation(self._text(choices))
        return Transcription(self._text(choices), Duration(math.ceil(self._transcriber.seconds)))

    def _text(self, choices: Sequence[CollectedChoice]) -> str:
        return "".join(self._texts.add(index, choice.content) for index, choice in enumerate(choices))

    def _timed(self, choices: Sequence[CollectedChoice]) -> TimedTranscript:
        return TimedTranscript(self._transcriber.pieces, choices)
