"""A recording that a model writes down while it hears it: one request, whose recording goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from starlette.requests import Request

from gateway.answers.collecting import updates
from gateway.answers.deltas import ChoiceUpdate, FinishReason
from gateway.context import context_of
from gateway.endpoints import chat
from gateway.requests.caller import tenant_of
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.speech_formats import FILE_URL
from gateway.requests.state import AudioAppend, RequestState
from gateway.requests.transcription import Transcribing
from quire.errors import Cancelled, QuireError
from quire.images import MAX_IMAGES_BYTES, Image
from quire.pcm import LIVE_RATE, SAMPLE_BYTES, wav_file

_LEAST_BYTES = LIVE_RATE // 25 * SAMPLE_BYTES  # 40 ms, for which the tokenizer service is not asked more often
MOST_BYTES = 4 * LIVE_RATE * SAMPLE_BYTES  # that are added at once
_MOST_AHEAD = 750  # tokens whose audio has been sent and that are not written
# What is left for as much audio as is added at once, and for the silence at the end: 10 s together.
_SPARE_TOKENS, _SPARE_BYTES = 125, 2**20


class HeardRecording:
    """One recording, or as much of one as fits a sequence.

    Attributes:
        prompt_tokens: of its request; 0 until that has started.
        is_full: whether nothing more may be added, and `end` is to be called.
    """

    def __init__(
        self, request: Request, asked: Transcribing, held: contextlib.ExitStack,
        tell: Callable[[ChoiceUpdate], Awaitable[None]], fail: Callable[[QuireError], Awaitable[None]],
    ) -> None:  # fmt: skip
        """
        Args:
            held: closed with the recording.
            tell: gets what the model writes.
            fail: called if the request fails by itself.
        """
        self.prompt_tokens = 0
        self.is_full = False
        self._request, self._context, self._asked = request, context_of(request), asked
        self._held, self._tell, self._fail = held, tell, fail
        self._samples = bytearray()  # that are not used up
        self._state: RequestState | None = None
        self._reading: asyncio.Task[None] | None = None
        self._num_sent = self._num_written = self._num_bytes = 0  # tokens whose audio was sent, or that were written
        self._most_tokens = 0
        self._has_written = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is written: the model may end before the recording does."""
        return self._reading is not None and self._reading.done()

    async def hear(self, samples: bytes) -> None:
        """Adds samples, at most MOST_BYTES. Waits while the model is far behind.

        Raises:
            QuireError: the request cannot be started.
        """
        self._samples += samples
        if len(self._samples) >= _LEAST_BYTES:
            await self._send(ends=False)

    async def end(self) -> None:
        """Returns when the model has written all that it has heard.

        Raises: see `hear`.
        """
        if not self.has_ended:
            await self._send(ends=True)
        if self._reading is not None:
            await self._reading

    def close(self) -> None:
        """Ends it, whatever is missing."""
        if self._reading is not None and self._reading is not asyncio.current_task():  # which calls `fail`
            self._reading.cancel()
        if self._state is not None:
            self._state.cancel()
        self._held.close()

    async def _send(self, *, ends: bool) -> None:
        begins = self._state is None
        part = await self._context.tokenizer.prepare_live_audio(bytes(self._samples), begins=begins, ends=ends)
        del self._samples[: part.num_used * SAMPLE_BYTES]
        if not part.audio.inputs:
            return
        self._num_sent += part.audio.num_tokens
        self._num_bytes += part.audio.num_bytes
        if self._state is None:
            self._state = await self._start(part.audio, goes_on=not ends)
            self._reading = asyncio.create_task(self._read(self._state))
        else:
            self._context.pipeline.hear(self._state, AudioAppend(part.audio, is_last=ends))
        has_room = self._num_sent + _SPARE_TOKENS < self._most_tokens
        self.is_full = not has_room or self._num_bytes + _SPARE_BYTES > MAX_IMAGES_BYTES
        while not self._state.closed and self._num_sent - self.prompt_tokens - self._num_written > _MOST_AHEAD:
            self._has_written.clear()
            await self._has_written.wait()  # its request has a deadline

    async def _start(self, audio: Image, *, goes_on: bool) -> RequestState:
        generation = await self._prepared(goes_on=goes_on, audio=audio)
        self.prompt_tokens = generation.prompt_tokens
        self._most_tokens = generation.prompt_tokens + generation.output_tokens
        return await self._context.pipeline.start(generation)

    async def _prepared(self, *, goes_on: bool, audio: Image) -> GenerationRequest:
        """The request. Its prompt is the same for all recordings."""
        asked, silence = self._asked.asked, wav_file(bytes(_LEAST_BYTES), LIVE_RATE)
        parsers = (asked.parser,) if asked.parser else ()
        with self._context.uploads.held(tenant_of(self._request), len(silence)):
            generation = await chat.prepare(
                self._request, self._asked.chat, [asked.messages], uploads={FILE_URL: silence}, parsers=parsers
            )
        (prompt,) = generation.prompts
        image = replace(prompt.images[0], inputs=audio.inputs, goes_on=goes_on)
        return replace(generation, prompts=(replace(prompt, images=(image,), block_keys=()),))

    async def _read(self, state: RequestState) -> None:
        """Tells what the model writes, to the request's end."""
        reason = FinishReason.ABORT
        try:
            async for update in updates(state):
                self._num_written += len(update.token_ids)
                self._has_written.set()
                if update.finish:
                    reason = update.finish.reason
                await self._tell(update)
        finally:
            self._has_written.set()
            state.cancel()
        if state.error or reason is FinishReason.ABORT:
            await self._fail(state.error or Cancelled("The transcription was aborted."))
