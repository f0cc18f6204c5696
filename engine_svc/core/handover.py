"""Passes the results of steps from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from engine_svc.kv_cache.events import Changes
from engine_svc.requests.outputs import SequenceDelta

# Most steps whose results the event loop has not taken yet.
_MAX_STEPS = 256
# How long the engine's thread waits for the event loop before it checks whether it should end.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Step:
    """Results of a step, or the remaining part of them.

    Deltas of `urgent` requests are delivered at once; `flush` delivers everything that waits.
    """

    deltas: list[SequenceDelta]
    changes: Changes | None = None
    urgent: Collection[int] = ()
    flush: bool = False


class Handover:
    """Delivers results to the event loop, with as few calls as needed.

    A call takes the interpreter from the engine's thread, and what it sends costs each of four services part of a
    millisecond. So what is not urgent waits until a pause after the previous call is over, together with what arrives
    until then; the pause ends in the event loop, without the engine's thread. Deltas of a sequence that waited together
    are joined into one: a delta costs every service the same, and the gateway one event, whether it has one token or
    three. Urgent deltas are sent without those of other requests, together with all that waits for the same requests.
    """

    def __init__(
        self,
        event_loop: asyncio.AbstractEventLoop,
        deliver: Callable[[list[SequenceDelta], list[Changes]], None],
        pause: Callable[[int], float],
    ) -> None:
        """
        Args:
            deliver: takes deltas, in order within each request, and changes of some steps; called in the event loop.
            pause: returns the seconds to pause after a number of deltas.
        """
        self._event_loop = event_loop
        self._deliver = deliver
        self._pause = pause
        self._brought: deque[_Step] = deque()
        self._room = threading.Semaphore(_MAX_STEPS)
        self._called = False  # a call of `_take` is scheduled but has not run yet
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
        """Adds the results of a step. Called in the engine's thread; blocks while the event loop lags too far behind.

        Args:
            urgent: keys of requests whose deltas are delivered at once.
            flush: deliver all deltas at once.
        """
        while not self._room.acquire(timeout=_LOOK_SECONDS):
            if self._closed:
                return
        if self._closed:  # nothing is delivered any more
            return
        self._brought.append(_Step(deltas, changes, urgent, flush))
        if (urgent or flush or not self._pausing) and not self._called:
            self._called = True
            self._event_loop.call_soon_threadsafe(self._take)

    def close(self) -> None:
        """Stops delivery. May be called from any thread."""
        self._closed = True

    def _take(self) -> None:
        self._called = False  # first, so that a `put` from now on schedules another call
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
        self._pausing = False  # first, as in `_take`
        self._take()


def joined(steps: Sequence[list[SequenceDelta]]) -> list[SequenceDelta]:
    """Deltas of some steps in order; those of a sequence without logprobs are joined, at the place of the last one."""
    if len(steps) == 1:
        return steps[0]
    found: list[SequenceDelta | None] = []
    places: dict[tuple[int, int], int] = {}  # sequence → index of its last delta, if tokens can be joined to it
    for delta in (delta for step in steps for delta in step):
        sequence = delta.key, delta.choice_index
        place = places.pop(sequence, None)
        if delta.logprobs is None and delta.prompt_logprobs is None:
            # A delta without tokens may concern the whole request, such as its early end.
            if place is not None and delta.token_ids and (before := _joinable(found[place], delta)) is not None:
                delta = msgspec.structs.replace(
                    delta, token_ids=before.token_ids + delta.token_ids, num_previous_tokens=before.num_previous_tokens,
                    routed_experts=before.routed_experts and before.routed_experts + (delta.routed_experts or []),
                    sampling_masks=before.sampling_masks and before.sampling_masks + (delta.sampling_masks or []),
                )  # fmt: skip
                found[place] = None
            places[sequence] = len(found)
        found.append(delta)
    return [delta for delta in found if delta is not None]


def _joinable(before: SequenceDelta | None, delta: SequenceDelta) -> SequenceDelta | None:
    """The delta before, if the same weights have computed the tokens of both."""
    return before if before is not None and before.weight_version == delta.weight_version else None
