"""The callers' side: sessions, and the requests running in each."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.errors import Overloaded, QuireError
from quire.images import MAX_IMAGES_BYTES
from quire.rpc.images import goes_on
from quire.rpc.session import Outbox
from quire.rpc.status import to_request_error
from quire.tracing.base import Span
from quire.v1 import common_pb2, engine_pb2, router_pb2
from router.clock import Timer
from router.placement.routed_request import RoutedRequest
from router.requests.fair_queue import Entry
from router.requests.journal import Journal


@dataclass(eq=False, slots=True, kw_only=True)
class Stream(RoutedRequest):
    """One request from its start to its last delta: on a worker, or waiting for one.

    Owned by its session and by the dispatcher's tables.
    """

    session: CallerSession
    # The caller's id for it.
    stream_id: int
    journal: Journal
    # What has come of its recording, which goes on, while it waits for a worker.
    coming: list[engine_pb2.AudioAppend] = field(default_factory=list)
    coming_bytes: int = 0
    # Number of workers lost in a row just as they began it, which it may have crashed.
    suspicions: int = 0
    # Whether it counts against the retry budget.
    retrying: bool = False
    # Seconds that it has waited for workers in total, and the time at which the current wait began.
    waited: float = 0.0
    waiting_since: float = 0.0
    # Set while it waits for a worker.
    entry: Entry[Stream] | None = None
    wait_timer: Timer | None = None
    # Ends the pause in which it goes to no worker.
    pause: Timer | None = None
    timer: Timer | None = None
    # The router's span in the request's trace; None without tracing.
    span: Span | None = None

    @property
    def begun(self) -> bool:
        """Whether it has been on a worker, of this router or of another one: it must not be refused any more."""
        return self.attempts > 0 or len(self.assignment.generation.progress) > 0

    @property
    def num_known_tokens(self) -> int:
        """Number of tokens of its prompt and its output so far."""
        return self.request.prompt_tokens + self.journal.num_tokens

    @property
    def goes_on(self) -> bool:
        """Whether more of its recording follows."""
        return goes_on(self.assignment.generation)

    def hear(self, append: engine_pb2.AudioAppend) -> None:
        """Sends audio with which its recording goes on to its worker, or keeps it until there is one.

        Raises:
            Overloaded: the worker does not read, or the audio is too long to be kept.
        """
        if self.worker is not None:
            self.worker.hear(self.worker_stream_id, append)
            return
        self.coming.append(append)
        self.coming_bytes += append.ByteSize()
        if self.coming_bytes > MAX_IMAGES_BYTES:
            raise Overloaded(
                "The recording has become too long while the request was waiting for a worker; try again in a moment."
            )

    def catch_up(self) -> bool:
        """Sends the audio that was kept to the worker, which it has got now.

        Raises: see `hear`.
        """
        coming, self.coming, self.coming_bytes = self.coming, [], 0
        for append in coming:
            self.hear(append)
        return True

    def waited_until(self, now: float) -> float:
        """Seconds that it has waited for workers in total, with the current wait up to clock time `now`."""
        return self.waited + (now - self.waiting_since if self.entry is not None else 0.0)


class CallerSession:
    """One caller: a gateway's Session call, or a single Generate call."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        # The error with which the session must end; None means that it goes on.
        self.failure: QuireError | None = None
        # Whether the caller has ended its side and starts nothing more.
        self.half_closed = False
        self._outbox: Outbox[router_pb2.RouterServiceSessionResponse]
        self._outbox = Outbox(router_pb2.RouterServiceSessionResponse)

    @property
    def finished(self) -> bool:
        """Whether the caller has ended its side and received everything it started."""
        return self.half_closed and not self.streams and not self._outbox.pending

    async def next_frame(self) -> router_pb2.RouterServiceSessionResponse:
        """The next frame for the caller; waits for one, at most until the next heartbeat.

        Raises:
            QuireError: the session must end.
        """
        frame = await self._outbox.next()
        if self.failure:
            raise self.failure
        assert frame is not None  # no timeout was given
        return frame

    def forward(self, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        """Sends all deltas of a worker's frame, whose stream ids have been replaced by the caller's."""
        # Both frame types have the same fields. Merging bytes takes a quarter of the time of copying messages.
        data = frame.SerializeToString()
        self._post(len(frame.deltas), len(data)).MergeFromString(data)

    def deliver(self, deltas: list[common_pb2.GenerationDelta]) -> None:
        """Sends some deltas."""
        self._post(len(deltas), sum(delta.ByteSize() for delta in deltas)).deltas.extend(deltas)

    def deliver_error(self, stream_id: int, error: QuireError) -> None:
        """Ends a request with an error."""
        self._post(1).deltas.add(
            stream_id=stream_id,
            finish_reason=common_pb2.FINISH_REASON_ERROR,
            is_final=True,
            error=to_request_error(error),
        )

    def heartbeat(self, beat: router_pb2.RouterServiceSessionResponse) -> None:
        """Sends a heartbeat, replacing one that has not been sent yet."""
        frame = self._post(0)
        frame.ready_workers, frame.draining = beat.ready_workers, beat.draining
        del frame.queues[:]
        frame.queues.extend(beat.queues)

    def wake(self) -> None:
        """Makes `next_frame` return, so that a change of the session is noticed."""
        self._post(0)

    def _post(self, items: int, num_bytes: int = 0) -> router_pb2.RouterServiceSessionResponse:
        try:
            return self._outbox.post(items, num_bytes)
        except Overloaded as error:
            # The caller does not read. Its frames are discarded, and the dispatcher ends its requests.
            self.failure = error
            return router_pb2.RouterServiceSessionResponse()
