"""The way of what steps bring from the engine's thread into the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from engine_svc.kv_cache.events import Changes
from engine_svc.requests.outputs import SequenceDelta

# Steps that the event loop may be behind with their results.
_MAX_STEPS = 256
# The engine's thread waits for the event loop for so long before it looks whether it is to end.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step brought, or what is left of it. Its deltas go at once where they are of `urgent` requests, and all
    that waits does with `flush`."""

    deltas: list[SequenceDelta]
    changes: Changes | None = None
    urgent: Collection[int] = ()
    flush: bool = False


class Handover:
    """Calls into the event loop, no more of them than needed.

    A call takes the interpreter from the engine's thread, and what it sends costs four services their part of a
    millisecond. So what is not urgent waits for the end of a pause after the call before, together with what comes
    until then; the pause ends in the event loop, without the engine's thread. What waited together of a sequence goes
    on as one delta: each costs every service as much, and the gateway an event, whether it has one token or three.
    What is urgent goes without the others' deltas, with all that waits of the same requests.
    """

    def __init__(
        self,
        event_loop: asyncio.AbstractEventLoop,
        deliver: Callable[[list[SequenceDelta], list[Changes]], None],
        pause: Callable[[int], float],
    ) -> None:
        """
        Args:
            deliver: takes what some steps brought, of each request in order; called in the event loop.
            pause: seconds, after so many deltas.
        """
        self._event_loop = event_loop
        self._deliver = deliver
        self._pause = pause
        self._brought: deque[_Step] = deque()
        self._room = threading.Semaphore(_MAX_STEPS)
        self._called = False  # and the call has not come yet
        self._pausing = False
        self._closed = False

    def put(
        self,
        deltas: list[SequenceDelta],
        changes: Changes | None,
        *,
        urgent: Collection[int] = (),
        flush: bool = False,
    ) -> None:
        """Called in the engine's thread. Where the event loop lags behind, so does the engine.

        Args:
            urgent: requests, by their keys, whose deltas go at once.
            flush: all deltas do.
        """
        while not self._room.acquire(timeout=_LOOK_SECONDS):
            if self._closed:
                return
        if self._closed:  # nobody listens any more
            return
        self._brought.append(_Step(deltas, changes, urgent, flush))
        if (urgent or flush or not self._pausing) and not self._called:
            self._called = True
            self._event_loop.call_soon_threadsafe(self._take)

    def close(self) -> None:
        """Nothing is delivered from now on. May be called from any thread."""
        self._closed = True

    def _take(self) -> None:
        self._called = False  # first: what is put from now on may call again
        brought = [self._brought.popleft() for _ in range(len(self._brought))]
        going, staying = [step.deltas for step in brought], list[_Step]()
        if self._pausing and not any(step.flush for step in brought):
            urgent = {key for step in brought for key in step.urgent}
            going = [[delta for delta in step.deltas if delta.key in urgent] for step in brought]
            others = ([delta for delta in step.deltas if delta.key not in urgent] for step in brought)
            staying = [_Step(deltas) for deltas in others if deltas]
            self._brought.extendleft(reversed(staying))
        for _ in range(len(brought) - len(staying)):
            self._room.release()
        deltas = joined([step for step in going if step])
        changes = [step.changes for step in brought if step.changes]
        if self._closed or not (deltas or changes):
            return
        if not self._pausing:
            self._pausing = True
            self._event_loop.call_later(self._pause(len(deltas)), self._end_pause)
        self._deliver(deltas, changes)

    def _end_pause(self) -> None:
        self._pausing = False  # first, as above
        self._take()


def joined(steps: Sequence[list[SequenceDelta]]) -> list[SequenceDelta]:
    """What some steps brought, in order; tokens of a sequence without scores become one delta, where its last was."""
    if len(steps) == 1:
        return steps[0]
    found: list[SequenceDelta | None] = []
    places: dict[tuple[int, int], int] = {}  # of the last deltas, by sequence, where tokens can be added to them
    for delta in (delta for step in steps for delta in step):
        sequence = delta.key, delta.choice_index
        place = places.pop(sequence, None)
        if delta.logprobs is None and delta.prompt_logprobs is None:
            # What brings no tokens may be about the whole request, such as its end before its time.
            if place is not None and delta.token_ids and (before := found[place]) is not None:
                delta = msgspec.structs.replace(delta, token_ids=before.token_ids + delta.token_ids)
                found[place] = None
            places[sequence] = len(found)
        found.append(delta)
    return [delta for delta in found if delta is not None]
