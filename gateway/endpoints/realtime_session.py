"""One connection of `/v1/realtime`: reads its events, and transcribes its audio.

Models that write while they hear get all of it in one request, as it comes; others one segment after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.answers.collecting import updates
from gateway.answers.deltas import ChoiceUpdate, content_of
from gateway.answers.seams import JoinedTexts
from gateway.context import context_of
from gateway.endpoints.heard_recording import MOST_BYTES, HeardRecording
from gateway.endpoints.realtime_events import OpenAIEvents, RealtimeEvents, VllmEvents, session_created
from gateway.endpoints.transcriber import Transcriber
from gateway.protocol.common import Usage
from gateway.protocol.openai_realtime import LiveAudioSettings, LiveFormat, LiveInput, LiveTranscription
from gateway.protocol.realtime import AudioAppend, ClientEvent, SessionUpdate
from gateway.protocol.transcription import TranscriptionRequest
from gateway.requests.caller import tenant_of
from gateway.requests.live_audio import LiveAudio, samples_of
from gateway.requests.named_key import NamedKey
from gateway.requests.resampling import Resampler
from gateway.requests.transcription import Transcribing, check_reads_audio, transcribing
from gateway.requests.wrong_field import wrong_field
from quire.error_tables import mapping_of
from quire.errors import Cancelled, Internal, InvalidRequest, QuireError, Unauthenticated, Unavailable
from quire.pcm import LIVE_RATE, SAMPLE_BYTES, wav_file
from quire.rpc.context import current_trace, enter_request
from quire.runners import GENERATE

logger = logging.getLogger(__name__)

_MOST_WAITING = 8  # segments; while there are so many, nothing is read from the connection
_EVENTS = (
    "Events are session.update (model, language, prompt; or a session of type transcription), "
    "input_audio_buffer.append (audio) and input_audio_buffer.commit (final)."
)
_IDLE, _REVOKED, _FAILED, _RESTARTING = 1001, 1008, 1011, 1012  # codes with which connections are closed


@dataclass(frozen=True)
class _Segment:
    samples: bytes
    is_final: bool = False  # whether the transcript ends with it


class _Transcript:
    """What has been said since the last final commit."""

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0
        self.num_pieces = 0  # whose texts are joined
        self._texts, self._told = JoinedTexts(), ""

    def add(self, piece: int, update: ChoiceUpdate) -> str:
        """Returns what an update of a piece adds to the transcript."""
        self.completion_tokens += len(update.token_ids)
        added = self._texts.add(piece, content_of(update.deltas))
        self._told += added
        return added

    def done(self, events: RealtimeEvents) -> msgspec.Struct:
        """The event of its end."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return events.done(self._told, Usage(prompt, prompt + completion, completion))


class RealtimeSession:
    """One connection, which has been accepted."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket, self._context = socket, context_of(socket)
        self._id = f"sess-{uuid.uuid4().hex}"
        self._options = self._context.options
        self._events: RealtimeEvents = VllmEvents()
        self._format, self._told = LiveFormat(rate=LIVE_RATE), LiveTranscription()
        self._resampler: Resampler | None = None  # of audio that comes faster
        self._audio = LiveAudio(self._options.realtime_segment_seconds)
        self._segments: asyncio.Queue[_Segment] = asyncio.Queue(_MOST_WAITING)
        self._asked: Transcribing | None = None
        self._transcript = _Transcript()
        self._heard: HeardRecording | None = None  # by a model that writes while it hears
        self._num_waiting = 0  # segments that are not transcribed
        self._num_segments = 0
        self._is_stopped = asyncio.Event()
        self._why: tuple[QuireError, int] | None = None  # it is stopped, and the code with which it is closed

    def stop(self) -> None:
        """Has the session transcribe what it has, and end: the server stops."""
        self._stop(Unavailable("The server is stopping: the connection is closed. Connect again."), _RESTARTING)

    def revoke(self) -> None:
        """Has the session transcribe what it has, and end: its API key is no longer known."""
        why = "The API key of this connection has been removed: the connection is closed. Connect with another key."
        self._stop(Unauthenticated(why), _REVOKED)

    def _stop(self, error: QuireError, code: int) -> None:
        self._why = self._why or (error, code)
        self._is_stopped.set()

    async def run(self) -> None:
        """Serves the connection to its end."""
        with contextlib.suppress(WebSocketDisconnect):
            if self._socket.query_params.get("intent") == "transcription":
                self._speak_openai()
            await self._send(session_created(self._id, self._settings))
            if model := self._socket.query_params.get("model"):
                await self._try(SessionUpdate(model=model))
            await self._serve()

    async def _serve(self) -> None:
        """Reads and writes until the client leaves, is silent for too long, or the session is stopped.

        Raises:
            WebSocketDisconnect: the client has left while something was sent.
        """
        reading, writing = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        stopped = asyncio.create_task(self._is_stopped.wait())
        jobs: tuple[asyncio.Task[Any], ...] = (reading, writing, stopped)
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            if not (reading.done() or writing.done()):
                reading.cancel()
                await self._finish(writing)
            for job in (reading, writing):
                if job.done() and not job.cancelled():
                    job.result()
        except WebSocketDisconnect:
            raise
        except Exception:
            logger.exception("a realtime session failed")
            await self._close(Internal("An internal error occurred; the gateway's log has the details."), _FAILED)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            self._let_go()

    async def _finish(self, writing: asyncio.Task[None]) -> None:
        """Writes what is left of the transcript, and closes the connection."""
        assert self._why is not None
        ending, seconds = asyncio.create_task(self._end_transcript()), self._options.drain_timeout_seconds
        await asyncio.wait((ending, writing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for job in (ending, writing):
            job.cancel()
        await self._close(*self._why)

    async def _end_transcript(self) -> None:
        if self._asked is not None:
            await self._put(is_final=True)
        await self._segments.join()

    # Reading.

    async def _read(self) -> None:
        """Reads events until the client leaves, or is silent for too long."""
        while (message := await self._received()) is not None:
            if message["type"] == "websocket.disconnect":
                return
            try:
                event = _event_in(message)
            except InvalidRequest as error:
                await self._tell(error)
            else:
                await self._try(event)
        seconds = self._options.realtime_idle_seconds
        idle = f"No event has arrived for {seconds:g} s (--realtime-idle-seconds); the connection is closed."
        await self._send(self._events.error(idle, "idle_timeout", None, None))
        await self._socket.close(_IDLE)

    async def _received(self) -> Message | None:
        """Returns the next message; None if there is none for too long while nothing is transcribed."""
        while True:
            try:
                async with asyncio.timeout(self._options.realtime_idle_seconds):
                    return await self._socket.receive()
            except TimeoutError:
                if not self._num_waiting:
                    return None

    async def _try(self, event: ClientEvent) -> None:
        """Handles an event, and tells the client if it is wrong."""
        try:
            await self._handle(event)
        except QuireError as error:
            await self._tell(error, event.event_id)

    async def _handle(self, event: ClientEvent) -> None:
        """
        Raises:
            QuireError: the event is wrong.
        """
        if isinstance(event, SessionUpdate):
            await self._update(event)
        elif self._asked is None:
            raise InvalidRequest(
                'No model has been named. Send {"type": "session.update", "model": "..."} first.', parameter="model"
            )
        elif isinstance(event, AudioAppend):
            samples = samples_of(event.audio)
            await self._hear_samples(self._resampler.add(samples) if self._resampler else samples)
        else:
            is_final = self._events.commits_end if event.final is None else event.final
            if is_final and (committed := self._events.committed()):
                await self._send(committed)
            await self._put(is_final=is_final)

    async def _hear_samples(self, samples: bytes) -> None:
        for segment in [self._audio.take() + samples] if self._hears_live else self._audio.append(samples):
            if segment:
                await self._enqueue(_Segment(segment))

    @property
    def _hears_live(self) -> bool:
        """Whether the model writes while it hears."""
        return self._asked is not None and self._asked.form.hears_live

    async def _put(self, *, is_final: bool) -> None:
        """Makes a segment of what is left."""
        if self._resampler and is_final:
            await self._hear_samples(self._resampler.end())
        samples = self._audio.take()
        if samples or is_final:
            await self._enqueue(_Segment(samples, is_final))

    async def _enqueue(self, segment: _Segment) -> None:
        self._num_waiting += 1
        await self._segments.put(segment)

    async def _update(self, event: SessionUpdate) -> None:
        """
        Raises:
            QuireError: the event is wrong.
        """
        told, form = LiveTranscription(event.model, event.language, event.prompt), self._format
        if event.session is not None:
            self._speak_openai()
            if told != LiveTranscription():
                raise InvalidRequest(
                    "Send either a session, or model, language and prompt beside it.", parameter="session"
                )
            given = event.session.audio.input
            told, form = given.transcription or self._told, given.format or self._format
            told = msgspec.structs.replace(told, model=told.model or self._told.model)
        self._asked, self._told = await self._asked_by(told), told
        self._take_format(form)
        if updated := self._events.updated(self._settings):
            await self._send(updated)

    @property
    def _settings(self) -> LiveAudioSettings:
        return LiveAudioSettings(LiveInput(self._format, self._told))

    def _speak_openai(self) -> None:
        """From here on, events have the form of OpenAI's clients, and audio has their rate unless they name another."""
        if isinstance(self._events, VllmEvents):
            self._events = OpenAIEvents(self._id)
            self._take_format(LiveFormat())

    def _take_format(self, form: LiveFormat) -> None:
        if form != self._format:
            self._format, self._resampler = form, None if form.rate == LIVE_RATE else Resampler()

    async def _asked_by(self, told: LiveTranscription) -> Transcribing:
        body = TranscriptionRequest(model=told.model, language=told.language, prompt=told.prompt)
        self._context.require_tokenizer("A transcription", "model")
        model = self._context.fleet.model(body.model, GENERATE)
        check_reads_audio(model)
        return transcribing(body, await self._context.speech.of(model))

    # Writing.

    async def _write(self) -> None:
        """Transcribes the segments in their order, until cancelled."""
        while True:
            segment = await self._segments.get()
            try:
                if self._heard or self._hears_live:
                    await self._hear(segment)
                elif segment.samples:
                    await self._transcribe(segment.samples)
            except QuireError as error:
                await self._tell(error)
            if segment.is_final:
                done, self._transcript = self._transcript.done(self._events), _Transcript()
                await self._send(done)
            self._num_waiting -= 1
            self._segments.task_done()

    async def _transcribe(self, samples: bytes) -> None:
        """
        Raises:
            QuireError: the segment cannot be transcribed.
        """
        assert self._asked is not None
        self._enter_request()
        self._context.realtime.audio_seconds += len(samples) / (SAMPLE_BYTES * LIVE_RATE)
        transcript, first = self._transcript, self._transcript.num_pieces
        with self._admitted() as request:
            transcriber, file = Transcriber(request, self._asked), wav_file(samples, LIVE_RATE)
            with contextlib.ExitStack() as held:
                held.enter_context(self._context.uploads.held(tenant_of(request), len(file)))
                chain = await transcriber.begin(file, held)
            async with chain.read_by(request.receive):
                async for update in updates(chain):
                    await self._tell_text(first + update.index, update)
            transcript.prompt_tokens += chain.prompt_tokens
            transcript.num_pieces += len(transcriber.pieces)
            if chain.error:
                raise chain.error
            if not chain.has_ended:
                raise Cancelled("The segment was aborted.")

    async def _hear(self, segment: _Segment) -> None:
        """Goes on with the recording, and begins the next one when a sequence has no more room.

        Raises:
            QuireError: what the segment was of cannot be transcribed any further.
        """
        self._context.realtime.audio_seconds += len(segment.samples) / (SAMPLE_BYTES * LIVE_RATE)
        try:
            for start in range(0, len(segment.samples), MOST_BYTES):
                if self._heard is not None and self._heard.has_ended:
                    await self._end_heard()
                heard = self._heard = self._heard or self._begun()
                await heard.hear(segment.samples[start : start + MOST_BYTES])
                if heard.is_full:
                    await self._end_heard()
            if segment.is_final:
                await self._end_heard()
        except QuireError:
            self._let_go()
            raise

    async def _end_heard(self) -> None:
        """Has the recording written down to its end, if it has not ended."""
        if self._heard is not None:
            await self._heard.end()
            self._let_go()

    def _begun(self) -> HeardRecording:
        """
        Raises:
            QuireError: it is not admitted.
        """
        assert self._asked is not None
        self._enter_request()
        piece = self._transcript.num_pieces
        self._transcript.num_pieces += 1
        with contextlib.ExitStack() as held:
            request = held.enter_context(self._admitted())
            return HeardRecording(request, self._asked, held.pop_all(), partial(self._tell_text, piece), self._lose)

    async def _lose(self, error: QuireError) -> None:
        """Tells why the recording cannot be transcribed any further. What comes from now on begins another one."""
        self._let_go()
        await self._tell(error)

    def _let_go(self) -> None:
        """Ends the recording, if it has not ended."""
        if (heard := self._heard) is not None:
            self._heard = None
            self._transcript.prompt_tokens += heard.prompt_tokens
            heard.close()

    def _enter_request(self) -> None:
        self._num_segments += 1
        enter_request(f"{self._id}-{self._num_segments}", current_trace())

    async def _tell_text(self, piece: int, update: ChoiceUpdate) -> None:
        if text := self._transcript.add(piece, update):
            await self._send(self._events.delta(text))

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[Request]:
        """A segment counts as a request of its own, whatever limits the caller has.

        Raises:
            QuireError: it is not admitted.
        """
        self._context.memory.admit()
        scope = self._socket.scope
        key: NamedKey | None = scope["state"].get("named_key")
        admission = None if key is None else key.admit()
        state = scope["state"] if admission is None else {**scope["state"], "admission": admission}
        try:
            yield Request({**scope, "type": "http", "method": "POST", "state": state}, _nothing_more)
        finally:
            if admission is not None:
                admission.end()

    async def _tell(self, error: QuireError, event_id: str | None = None) -> None:
        code, parameter = mapping_of(error).http_type, error.parameter or None
        await self._send(self._events.error(error.message, code, parameter, event_id))

    async def _close(self, error: QuireError, code: int) -> None:
        """Says why the session ends, and closes the connection."""
        await self._tell(error)
        await self._socket.close(code)

    async def _send(self, event: msgspec.Struct) -> None:
        await self._socket.send_text(msgspec.json.encode(event).decode())


async def _nothing_more() -> Message:
    """Receives for a segment's request, whose body has been read. The session itself notices that its client leaves."""
    await asyncio.Event().wait()
    raise AssertionError


def _event_in(message: Message) -> ClientEvent:
    """
    Raises:
        InvalidRequest: the message is no event.
    """
    text = message.get("text")
    if text is None:
        raise InvalidRequest(f"A message is binary; expected JSON as text. {_EVENTS}")
    try:
        event: ClientEvent = msgspec.json.decode(text, type=ClientEvent)
    except msgspec.ValidationError as error:
        found = wrong_field(error)
        raise InvalidRequest(f"{found.message}. {_EVENTS}", parameter=found.parameter) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"A message is no JSON ({error}). {_EVENTS}") from None
    except RecursionError:
        raise InvalidRequest(f"A message is nested too deeply. {_EVENTS}") from None
    return event
