"""The engine's side of a session: many requests over one stream, one frame per step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator

from engine_svc.requests.outputs import FinishReason, SequenceDelta, num_items
from engine_svc.service.convert import add_delta, from_load, to_request
from engine_svc.service.traces import EngineTraces
from engine_svc.worker import EngineWorker
from quire.bounds import MANY_LOGPROBS
from quire.errors import Internal, InvalidRequest, Overloaded, QuireError
from quire.rpc.images import to_images
from quire.rpc.session import Outbox
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import engine_pb2

logger = logging.getLogger(__name__)

# Most bytes of log-probabilities kept for a client that does not read.
_MAX_LARGE_BYTES = 2**30
_MANY_BYTES = 2**16  # of routed experts and sampling masks, so that those of a frame with many sequences fit a message


class EngineSession:
    """One open session. Its requests end with it."""

    def __init__(self, worker: EngineWorker, traces: EngineTraces | None = None) -> None:
        self._worker = worker
        self._traces = traces
        self._outbox = Outbox(engine_pb2.EngineServiceSessionResponse)
        self._unsent = False
        self._streams: dict[int, int] = {}  # the engine's key -> the client's stream id
        self._keys: dict[int, int] = {}  # the client's stream id -> the engine's key
        # Deltas of megabytes, each in a frame of its own. They are sent before other deltas of their stream.
        self._large: deque[engine_pb2.EngineServiceSessionResponse] = deque()
        self._large_bytes = 0
        self._held: engine_pb2.EngineServiceSessionResponse | None = None  # sent after the large ones
        self._load_sent = 0.0
        self._overflow: Overloaded | None = None

    async def frames(
        self, requests: AsyncIterator[engine_pb2.EngineServiceSessionRequest]
    ) -> AsyncIterator[engine_pb2.EngineServiceSessionResponse]:
        """Yields the frames to send, until the client ends the session.

        Raises:
            InvalidRequest: the client used a stream id twice.
            Overloaded: the client does not read.
        """
        reader = asyncio.create_task(self._read(requests))
        try:
            while True:
                yield await self._next_frame()
                if self._overflow is not None:
                    raise self._overflow
                if reader.done():
                    reader.result()
                    if not (
                        self._streams or self._unsent or self._held or self._large
                    ):  # the client has ended its side and has received everything
                        return
        finally:
            reader.cancel()
            for key in self._streams:
                self._worker.loop.detach(key)
                if self._traces is not None:
                    self._traces.left(key)

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        """Adds deltas to the next frame."""
        frame = self._frame(num_items(deltas))
        if frame is None:
            return
        streams, messages = self._streams, frame.deltas
        for delta in deltas:
            stream_id = streams[delta.key]
            if delta.prompt_logprobs or _is_large(delta):
                self._post_large(delta, stream_id)
            else:
                add_delta(messages, delta, stream_id)
            if delta.is_final:
                if self._traces is not None:
                    self._traces.delivered(delta)
                del streams[delta.key]
                del self._keys[stream_id]

    async def _read(self, requests: AsyncIterator[engine_pb2.EngineServiceSessionRequest]) -> None:
        async for message in requests:
            for start in message.starts:
                self._start(start)
            for stop in message.stops:
                if (key := self._keys.get(stop.stream_id)) is not None:
                    self._worker.loop.stop_sequence(key, stop.choice_index, stop.num_output_tokens)
            for append in message.appends:
                if (key := self._keys.get(append.stream_id)) is not None:
                    (audio,) = to_images([append.audio])
                    self._worker.loop.hear(key, audio, is_last=append.is_last)
            for stream_id in message.abort_stream_ids:
                if (key := self._keys.get(stream_id)) is not None:
                    self._worker.loop.abort(key)

    def _start(self, start: engine_pb2.SessionStart) -> None:
        if start.stream_id in self._keys:
            raise InvalidRequest(f"stream_id {start.stream_id} is already in use.", parameter="stream_id")
        try:
            request = to_request(start.generation, hands_over=start.hands_over)
            key = self._worker.submit(request, self)
        except QuireError as error:
            self._refuse(start.stream_id, error)
            return
        except Exception:  # must not affect the session's other requests
            logger.exception("a request could not be accepted")
            self._refuse(start.stream_id, Internal("The engine could not accept this request; its log says why."))
            return
        if self._traces is not None:
            self._traces.started(key, start.generation)
        self._streams[key] = start.stream_id
        self._keys[start.stream_id] = key

    def _refuse(self, stream_id: int, error: QuireError) -> None:
        if (frame := self._frame(1)) is not None:
            failed = SequenceDelta(0, 0, [], finish_reason=FinishReason.ERROR, is_final=True, error=error)
            add_delta(frame.deltas, failed, stream_id)

    def _frame(self, items: int) -> engine_pb2.EngineServiceSessionResponse | None:
        """The next frame to send; None once the client has left too much unread."""
        try:
            frame = self._outbox.post(items)
        except Overloaded as error:
            self._give_up(error)
            return None
        self._unsent = True
        return frame

    def _post_large(self, delta: SequenceDelta, stream_id: int) -> None:
        frame = engine_pb2.EngineServiceSessionResponse()
        add_delta(frame.deltas, delta, stream_id)
        self._large.append(frame)
        self._large_bytes += frame.ByteSize()
        if self._large_bytes > _MAX_LARGE_BYTES:
            self._give_up(Overloaded("The client is not reading its log-probabilities or routed experts."))

    def _give_up(self, error: Overloaded) -> None:
        self._overflow = error
        for key in self._streams:
            self._worker.loop.detach(key)

    async def _next_frame(self) -> engine_pb2.EngineServiceSessionResponse:
        """Returns the next posted frame, or a heartbeat if nothing is posted for a while."""
        if self._held is None:
            self._held = await self._outbox.next(HEARTBEAT_SECONDS)
            self._unsent = False
        if self._large:
            large = self._large.popleft()
            self._large_bytes -= large.ByteSize()
            return large
        frame, self._held = self._held or engine_pb2.EngineServiceSessionResponse(), None
        now = time.monotonic()
        if now - self._load_sent >= HEARTBEAT_SECONDS * 0.9:
            self._load_sent = now
            frame.load.CopyFrom(from_load(self._worker.load_now()))
        return frame


def _is_large(delta: SequenceDelta) -> bool:
    """Whether each token of the delta has very many logprobs, or much else comes with it."""
    has_many_logprobs = delta.logprobs is not None and len(delta.logprobs[0].token_ids) > MANY_LOGPROBS
    beside = sum(map(len, delta.routed_experts or ())) + 4 * sum(map(len, delta.sampling_masks or ()))
    return has_many_logprobs or beside > _MANY_BYTES
