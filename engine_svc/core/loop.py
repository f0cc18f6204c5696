"""The engine's thread, and its communication with the event loop.

Commands go in through a queue and are carried out before the next step. The results of a step come back in one call
into the event loop, however many requests they concern, or share a call with those of other steps: see `handover`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from engine_svc.adapters.adapter import Adapter
from engine_svc.core.handover import Handover
from engine_svc.core.stepped import SteppedEngine
from engine_svc.kv_cache.events import CacheContents, Changes, EventLog
from engine_svc.requests.encoding import EncodingRequest
from engine_svc.requests.outputs import EngineLoad, FinishReason, SequenceDelta
from engine_svc.requests.pooling import PoolingRequest
from engine_svc.requests.request import GenerationRequest
from quire.errors import DRAINING, ENGINE_FAULT, LOADING, QUEUE_FULL, Overloaded, QuireError, Unavailable
from quire.images import Image
from quire.prompt_embeds import MAX_LIVE_CONTENT_BYTES

logger = logging.getLogger(__name__)

# The idle thread is woken by commands; it also wakes up this often, to ask whether all ranks are alive.
_IDLE_SECONDS = 1.0
# How often it polls for transferred blocks when there is nothing else to do.
_BLOCKS_SECONDS = 0.001
# Interval between deliveries of a fast model's tokens to the event loop; twice as long with many sequences, because
# each delta costs the services the same however many tokens it has. A stream's first and last tokens are delivered at
# once, and so is everything if it arrives more slowly than this.
_PAUSE_SECONDS = 0.01
_MANY_SEQUENCES = 16

Command = Callable[[SteppedEngine], None]
T = TypeVar("T")


class Sink(Protocol):
    """Receives the deltas of some requests. Called in the event loop; must neither block nor raise."""

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        """Takes the new deltas of this sink's requests, in order."""


@dataclass(frozen=True)
class _Stream:
    sink: Sink
    request_id: str
    content_bytes: int


class EngineLoop:
    """Runs an engine in its own thread. Its methods are for the event loop that started it.

    Life cycle: `await start()` (builds the engine), submit and abort, `await drain()`, `await stop()`. When the engine
    dies, every request ends with an error and `died` is set.
    """

    def __init__(self, build: Callable[[], SteppedEngine], max_waiting_requests: int) -> None:
        """
        Args:
            build: creates the engine, including loading the model, in the engine's thread.
            max_waiting_requests: most requests that may wait.
        """
        self._build = build
        self._max_waiting = max_waiting_requests
        self._event_loop = asyncio.get_running_loop()
        self._built: asyncio.Future[SteppedEngine] = self._event_loop.create_future()
        self.died: asyncio.Future[Exception] = self._event_loop.create_future()
        self._commands: deque[Command] = deque()
        self._wake = threading.Event()
        self._handover = Handover(self._event_loop, self._deliver, _pause_after)
        self._heard: set[int] = set()  # keys of requests that had a delta before
        self._num_changes = 0  # cache changes so far: each gets the next number in `kv_events`
        self._stopping = False
        self._draining = False
        self.refusal: Unavailable | None = None  # the error for new requests while an operator wants none
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._engine: SteppedEngine | None = None
        self._streams: dict[int, _Stream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._keys = itertools.count(1)
        self._step_started: float | None = None
        self.kv_events = EventLog()

    async def start(self) -> None:
        """Starts the thread and waits until the engine is built; raises the exception of building it, if any."""
        self._thread.start()
        self._engine = await asyncio.shield(self._built)

    def submit(self, request: GenerationRequest | PoolingRequest | EncodingRequest, sink: Sink) -> int:
        """Submits a validated request to the engine; returns the key that identifies it in deltas.

        Raises:
            Overloaded: too many requests wait already, or their prompt embeddings and images take too much memory.
            Unavailable: the engine is not built yet, is shutting down or has died, or an operator has paused or
                drained it.
        """
        engine = self._ready()
        if self._draining:
            raise Unavailable("This worker is shutting down; try another one.", reason=DRAINING)
        if self.refusal is not None:
            raise Unavailable(self.refusal.message, reason=self.refusal.reason)
        if engine.num_waiting + len(self._commands) >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} requests are already waiting; try again later.", reason=QUEUE_FULL)
        content_bytes = request.content_bytes
        if content_bytes and content_bytes + self._content_bytes() > MAX_LIVE_CONTENT_BYTES:
            raise _too_much_content()
        key = next(self._keys)
        self._streams[key] = _Stream(sink, request.request_id, content_bytes)
        self._idle.clear()
        arrival = time.monotonic()
        self._command(lambda engine: engine.add(key, request, arrival))
        return key

    def _content_bytes(self) -> int:
        """Bytes of prompt embeddings and images of all live requests."""
        return sum(stream.content_bytes for stream in self._streams.values())

    def abort(self, key: int) -> None:
        """Ends a request; ignores unknown keys. Its sink still receives the final delta."""
        if key in self._streams:
            self._command(lambda engine: engine.abort(key))

    def hear(self, key: int, audio: Image, *, is_last: bool) -> None:
        """Goes on with the recording of a request: see `Engine.hear`. Ignores unknown keys."""
        if (stream := self._streams.get(key)) is None:
            return
        if self._content_bytes() + audio.num_bytes > MAX_LIVE_CONTENT_BYTES:
            self._command(lambda engine: engine.refuse(key, _too_much_content()))
            return
        self._streams[key] = replace(stream, content_bytes=stream.content_bytes + audio.num_bytes)
        self._command(lambda engine: engine.hear(key, audio, is_last=is_last))

    def stop_sequence(self, key: int, choice_index: int, num_output_tokens: int) -> None:
        """Ends one sequence of a request: see `Engine.stop`. Ignores unknown keys."""
        if key in self._streams:
            self._command(lambda engine: engine.stop(key, choice_index, num_output_tokens))

    def detach(self, key: int) -> None:
        """Ends a request whose sink is gone."""
        if self._streams.pop(key, None) is not None:
            self._command(lambda engine: engine.abort(key))
            self._note_idle()

    def abort_requests(self, request_ids: Iterable[str]) -> int:
        """Ends all requests with these ids; returns how many there were."""
        wanted = set(request_ids)
        keys = [key for key, stream in self._streams.items() if stream.request_id in wanted]
        for key in keys:
            self.abort(key)
        return len(keys)

    def load(self) -> EngineLoad:
        """Current load of the engine.

        Raises:
            Unavailable: the engine is not built yet.
        """
        return (self._engine or self._ready()).load()

    async def cache_contents(self) -> tuple[int, CacheContents]:
        """Contents of the prefix cache, and the number of the last batch of `kv_events` that they include.

        Raises: as `call`.
        """

        def take(engine: SteppedEngine) -> tuple[int, CacheContents]:
            self._hand_over([], engine.take_cache_changes())
            return self._num_changes, engine.cache_contents()

        return await self.call(take)

    async def call(self, function: Callable[[SteppedEngine], T]) -> T:
        """Calls a function in the engine's thread, between two steps, and returns its result.

        The result arrives after everything that the engine has reported so far.

        Raises:
            QuireError: raised by the function.
            Unavailable: the engine is not built yet or has died; any other error of the function makes it die.
        """
        self._ready()
        answer: asyncio.Future[T] = self._event_loop.create_future()

        def resolve(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        def refuse(error: QuireError) -> None:
            if not answer.done():
                answer.set_exception(error)

        def command(engine: SteppedEngine) -> None:
            try:
                tell: Callable[[], None] = partial(resolve, function(engine))
            except QuireError as error:
                tell = partial(refuse, error)
            self._hand_over([], engine.take_cache_changes(), flush=True)
            self._event_loop.call_soon_threadsafe(tell)

        self._command(command)
        either: list[asyncio.Future[Any]] = [answer, self.died]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._ready()
        return answer.result()

    async def retire_adapter(self, adapter: Adapter, wait_seconds: float = 0.0) -> int:
        """Retires an adapter, which goes with the last request submitted so far that uses it: `Engine.retire_adapter`.

        Returns:
            The number of requests that still use it after waiting at most `wait_seconds`.

        Raises:
            Unavailable: the engine has died.
        """
        engine, gone = self._ready(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._event_loop.call_soon_threadsafe(gone.set)

        self._command(lambda engine: engine.retire_adapter(adapter, tell))
        waiting = asyncio.ensure_future(gone.wait())
        either: list[asyncio.Future[Any]] = [waiting, self.died]
        await asyncio.wait(either, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._ready()
        return 0 if gone.is_set() else engine.num_requests_with(adapter)

    def step_age(self) -> float:
        """Seconds that the current step has been running; 0 between steps."""
        started = self._step_started
        return 0.0 if started is None else time.monotonic() - started

    async def drain(self) -> None:
        """Refuses new requests and returns when the last one has ended."""
        self._draining = True
        await self.wait_idle()

    async def wait_idle(self) -> None:
        """Returns when the last request has ended."""
        await self._idle.wait()

    @property
    def num_requests(self) -> int:
        """Number of requests that have not ended."""
        return len(self._streams)

    async def stop(self, timeout: float = 5.0) -> None:
        """Ends the thread after its current step; requests that are still running are not reported as ended."""
        self._stopping = True
        self._handover.close()
        self._wake.set()
        await asyncio.to_thread(self._thread.join, timeout)

    def _ready(self) -> SteppedEngine:
        if self._engine is None:
            raise still_loading()
        if self.died.done():
            raise Unavailable("The engine has failed and is being restarted.", reason=ENGINE_FAULT)
        return self._engine

    def _command(self, command: Command) -> None:
        self._commands.append(command)
        self._wake.set()

    def _deliver(self, deltas: list[SequenceDelta], changes: list[Changes]) -> None:
        """Delivers the results of some steps to the event log and to the sinks."""
        for change in changes:
            self.kv_events.append(change)
        by_sink: dict[Sink, list[SequenceDelta]] = {}
        streams = self._streams
        for delta in deltas:
            stream = streams.get(delta.key)
            if stream is None:  # its sink has detached
                continue
            if delta.is_final:
                del streams[delta.key]
            by_sink.setdefault(stream.sink, []).append(delta)
        for sink, news in by_sink.items():
            sink.deliver(news)
        self._note_idle()

    def _note_death(self, error: Exception, fault: QuireError) -> None:
        self.died.set_result(error)
        # Requests submitted while the engine was dying have had no final delta.
        self._deliver(
            [
                SequenceDelta(key, 0, [], finish_reason=FinishReason.ERROR, is_final=True, error=fault)
                for key in self._streams
            ],
            [],
        )

    def _note_idle(self) -> None:
        if not self._streams:
            self._idle.set()

    # Everything below runs in the engine's thread.

    def _run(self) -> None:
        try:
            engine = self._build()
        except Exception as error:
            self._event_loop.call_soon_threadsafe(self._built.set_exception, error)
            return
        engine.wake_by(self._wake.set)
        self._event_loop.call_soon_threadsafe(self._built.set_result, engine)
        try:
            self._serve(engine)
        except Exception as error:
            logger.critical("the engine has died", exc_info=error)
            fault = Unavailable("The engine has failed and is being restarted; try again.", reason=ENGINE_FAULT)
            self._hand_over(engine.give_up(fault), None)
            if not self._stopping:
                self._event_loop.call_soon_threadsafe(self._note_death, error, fault)
        finally:
            engine.close()

    def _serve(self, engine: SteppedEngine) -> None:
        while not self._stopping:
            if not engine.has_work:
                engine.check_alive(asks=not self._wake.wait(_IDLE_SECONDS))
            elif engine.is_waiting:
                self._wake.wait(_BLOCKS_SECONDS)
            self._wake.clear()
            while self._commands:
                self._commands.popleft()(engine)
            if engine.has_work:
                self._step_started = time.monotonic()
                deltas = engine.step()
                self._step_started = None
                self._hand_over(deltas, engine.take_cache_changes())

    def _hand_over(self, deltas: list[SequenceDelta], changes: Changes | None, *, flush: bool = False) -> None:
        if deltas or changes or flush:
            self._num_changes += changes is not None
            self._handover.put(deltas, changes, urgent=self._first_or_last(deltas), flush=flush)

    def _first_or_last(self, deltas: list[SequenceDelta]) -> set[int]:
        """Keys of the requests whose first delta, or the last delta of one of whose sequences, is among these."""
        found, heard = set[int](), self._heard
        for delta in deltas:
            key = delta.key
            if key not in heard:
                heard.add(key)
                found.add(key)
            if delta.finish_reason:
                found.add(key)
            if delta.is_final:
                heard.discard(key)
                found.add(key)
        return found


def _too_much_content() -> Overloaded:
    return Overloaded(
        f"Too many images and embeddings are being processed: the limit is {MAX_LIVE_CONTENT_BYTES} bytes; try again "
        "later.",
        reason=QUEUE_FULL,
    )


def still_loading() -> Unavailable:
    """The error raised while the model is still loading."""
    return Unavailable("The model is still loading; try again in a moment.", reason=LOADING)


def _pause_after(sequences: int) -> float:
    return _PAUSE_SECONDS if sequences <= _MANY_SEQUENCES else 2 * _PAUSE_SECONDS
