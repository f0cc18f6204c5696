"""Dual-batch overlap: a forward pass in two halves, one of which computes while the other one's collective runs.

Each half runs in its own thread like a whole pass, but they take turns: only one of them computes at a time. A half
that reaches a collective lets the other one compute meanwhile, and continues when that one has reached its own.

* Turns alternate strictly, and both halves reach the same collectives. So all ranks run collectives in the same order:
  the first half's first, the second half's first, the first half's second, and so on. This also holds on a data rank
  without tokens, which reaches fewer of them.
* The first half is always ahead. What it caches in a layer is there when the second half attends in that layer, so a
  sequence may be split between the halves.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


class _Abandoned(Exception):
    """The other half has failed, or this one has failed in a collective."""


class DualBatch:
    """The two halves of a rank's split passes; shared by all of the rank's groups."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream = torch.cuda.Stream(device) if device is not None and device.type == "cuda" else None
        self._turn: int | None = None  # the half whose turn it is; None if no pass is split
        self._may_compute = (threading.Lock(), threading.Lock())  # each is released when its half's turn comes
        self._channel = threading.Lock()  # held while a half communicates; only the computing half acquires it
        self._has_ended = [False, False]
        self._failure: BaseException | None = None
        self._second = _Thread()

    def share(self, count: int) -> int:
        """How many of a rank's `count` tokens belong to the half that is computing; all if the pass is not split."""
        if self._turn is None:
            return count
        return count // 2 if self._turn else count - count // 2

    def run(self, first: Callable[[], _Result], second: Callable[[], _Result]) -> tuple[_Result, _Result]:
        """Runs both halves and returns their results. The first one runs in this thread.

        Raises: what a half raises; the other half then ends at its next collective.
        """
        self._may_compute = (threading.Lock(), threading.Lock())
        for each in self._may_compute:
            each.acquire()
        self._has_ended, self._failure = [False, False], None
        found: dict[int, _Result] = {}

        def half(number: int, call: Callable[[], _Result]) -> None:
            try:
                if number:
                    self._take_turn(number)
                found[number] = call()
            except BaseException as error:
                self._failure = self._failure or error
            self._has_ended[number] = True
            self._pass_on(number)

        self._turn = 0
        ended = self._second.start(_as_here(lambda: half(1, second)))
        half(0, first)
        ended.acquire()
        self._turn = None
        if self._failure is not None:
            raise self._failure
        return found[0], found[1]

    def communicate(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Runs a collective and returns its result; meanwhile the other half computes, if there is one."""
        if self._turn is None:
            return call()
        mine, found = self._turn, None
        with self._channel:
            self._check()
            beside = contextlib.nullcontext() if self._stream is None else _Beside(self._stream)
            self._pass_on(mine)
            try:
                with beside:
                    found = call()
            except BaseException as error:
                self._failure = self._failure or error
        self._take_turn(mine)
        assert found is not None
        if isinstance(beside, _Beside):
            beside.join(found)
        return found

    def _pass_on(self, mine: int) -> None:
        """Gives the turn to the other half, or back to this one if the other has ended."""
        self._turn = mine if self._has_ended[1 - mine] else 1 - mine
        self._may_compute[self._turn].release()

    def _take_turn(self, mine: int) -> None:
        self._may_compute[mine].acquire()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise _Abandoned

    def close(self) -> None:
        """Ends the second half's thread, if it was started."""
        self._second.close()


class _Beside:
    """A collective on its own CUDA stream: after all work computed so far, concurrent with work submitted later."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream, self._ready = stream, torch.cuda.current_stream(stream.device).record_event()
        self._entered = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._entered.__enter__()
        self._stream.wait_event(self._ready)

    def __exit__(self, *raised: object) -> None:
        self._done = self._stream.record_event()
        self._entered.__exit__(*raised)

    def join(self, found: torch.Tensor) -> None:
        """Makes later computation wait for the collective, and keeps its result's memory until that is done."""
        computing = torch.cuda.current_stream(self._stream.device)
        computing.wait_event(self._done)
        found.record_stream(computing)


class _Thread:
    """A thread that runs calls one after the other; it starts with the first call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_there = False

    def start(self, call: Callable[[], None]) -> threading.Lock:
        """Starts a call, which must not raise; the returned lock can be acquired when the call has ended."""
        if not self._is_there:
            threading.Thread(target=self._serve, name="second half", daemon=True).start()
            self._is_there = True
        ended = threading.Lock()
        ended.acquire()

        def run() -> None:
            call()
            ended.release()

        self._calls.put(run)
        return ended

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        """Ends the thread after the calls already started."""
        if self._is_there:
            self._calls.put(None)
            self._is_there = False


def _as_here(call: Callable[[], None]) -> Callable[[], None]:
    """Wraps a call for another thread, with torch's per-thread state as in this thread."""
    only_infers = torch.is_inference_mode_enabled()
    stream = torch.cuda.current_stream() if torch.cuda.is_available() else None

    def run() -> None:
        with torch.inference_mode(only_infers), torch.cuda.stream(stream):
            call()

    return run
