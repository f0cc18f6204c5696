"""Two halves of a forward pass, of which one computes while ranks send each other what the other half needs.

Each half runs in a thread of its own, as the whole pass would, but they take turns: only one of them computes. A half
that comes to a collective lets the other one compute meanwhile, and goes on when that one has come to its own.

* Turns alternate strictly, and both halves come to the same collectives. So these are made in the same order on all
  ranks: the first one of the first half, the first one of the second, the second one of the first, and so on; also on a
  data rank without tokens, which comes to fewer of them.
* The first half is always ahead. What it caches in a layer is there when the second half attends in that layer: a
  sequence may be cut between them.
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
    """The other half has failed, or this one has in a collective."""


class DualBatch:
    """A rank's halves, where it has a pass that is cut; known to all of its groups."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream = torch.cuda.Stream(device) if device is not None and device.type == "cuda" else None
        self._turn: int | None = None  # of which half; None: no pass is cut
        self._may_compute = (threading.Lock(), threading.Lock())  # each is released when its half's turn has come
        self._channel = threading.Lock()  # held while a half communicates; asked for only by the one that computes
        self._has_ended = [False, False]
        self._failure: BaseException | None = None
        self._second = _Thread()

    def share(self, count: int) -> int:
        """How many of a pass's tokens, on any rank, are those of the half that computes; all if it is not cut."""
        if self._turn is None:
            return count
        return count // 2 if self._turn else count - count // 2

    def run(self, first: Callable[[], _Result], second: Callable[[], _Result]) -> tuple[_Result, _Result]:
        """What both halves bring. The first one runs in this thread.

        Raises: what a half does; the other one ends at its next collective then.
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
        """What a collective brings; while it is under way, the other half computes, if there is one."""
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
        """To the other half; if that has ended, it is this one's turn again."""
        self._turn = mine if self._has_ended[1 - mine] else 1 - mine
        self._may_compute[self._turn].release()

    def _take_turn(self, mine: int) -> None:
        self._may_compute[mine].acquire()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise _Abandoned

    def close(self) -> None:
        """Ends the thread, if it has been used."""
        self._second.close()


class _Beside:
    """A collective on a GPU, in a stream of its own: behind what has been computed, and beside what is from then on."""

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
        """What is computed from now on comes behind it. Its memory is not used anew before that is done."""
        computing = torch.cuda.current_stream(self._stream.device)
        computing.wait_event(self._done)
        found.record_stream(computing)


class _Thread:
    """Runs one call after the other; there is none before the first."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_there = False

    def start(self, call: Callable[[], None]) -> threading.Lock:
        """Begins a call, which raises nothing; the lock can be acquired when it has ended."""
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
        """Ends the thread when it has done what was begun."""
        if self._is_there:
            self._calls.put(None)
            self._is_there = False


def _as_here(call: Callable[[], None]) -> Callable[[], None]:
    """The call in another thread, with what torch keeps for each thread as it is in this one."""
    only_infers = torch.is_inference_mode_enabled()
    stream = torch.cuda.current_stream() if torch.cuda.is_available() else None

    def run() -> None:
        with torch.inference_mode(only_infers), torch.cuda.stream(stream):
            call()

    return run
