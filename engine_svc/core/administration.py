"""What operators ask of an engine: to take nothing new, to stand still, to sleep, to forget, to be profiled.

Each may be asked for again, which changes nothing more. One after the other is carried out, to its end, though whoever
asked may have lost patience meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from engine_svc.core.loop import EngineLoop
from engine_svc.core.stepped import SteppedEngine
from engine_svc.requests.outputs import EngineStatus
from engine_svc.upkeep import StartProfile, StopProfile
from quire.errors import (
    DRAINING,
    PAUSED,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    Overloaded,
    Unavailable,
)
from quire.options.upkeep import UpkeepOptions
from quire.sleep import Leaving, SleepLevel

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MOST_ASKED = 64


class Administration:
    """Its methods are for the event loop of the engine's `loop`."""

    def __init__(self, loop: EngineLoop, options: UpkeepOptions) -> None:
        self._loop = loop
        self._options = options
        self._lock = asyncio.Lock()
        self._asked: set[asyncio.Task[object]] = set()
        self._is_draining = False
        # Those that are asked for, and wait for requests to end or for their turn; set where a resume takes one back.
        self._pauses: set[asyncio.Event] = set()
        self._is_profiling = False

    @property
    def status(self) -> EngineStatus:
        """What holds now.

        Raises:
            Unavailable: the engine is not built yet.
        """
        return self.complete(self._loop.load().status)

    def complete(self, status: EngineStatus) -> EngineStatus:
        """What the engine knows of it, and what is known here."""
        return dataclasses.replace(status, is_draining=self._is_draining, is_profiling=self._is_profiling)

    def drain(self, wanted: bool) -> None:
        """It takes no new requests, or takes some again; those that it has get on as ever."""
        self._is_draining = wanted
        self._refuse_or_not()

    async def pause(self, leaving: Leaving, wait_seconds: float, *, clears_cache: bool) -> None:
        """No request gets on, and no new ones are taken.

        Args:
            leaving: what becomes of the requests that it has.
            wait_seconds: how long it may take until they have ended, where that is waited for.
            clears_cache: the prefix cache is empty then, unless requests stay.

        Raises:
            DeadlineExceeded: they have not; nothing is changed.
            Conflict: they cannot, for it is paused already; or it was resumed while they were waited for.
        """

        def act(engine: SteppedEngine) -> None:
            self._leave(engine, leaving)
            engine.rest.pause()
            if clears_cache and leaving is not Leaving.KEEP:
                engine.rest.reset_prefix_cache(preempts=False)

        await self._rest(leaving, wait_seconds, act)

    async def resume(self) -> None:
        """What stood still gets on, and new requests are taken.

        Raises:
            Conflict: it sleeps, and has given memory back.
        """
        await self._exclusively(lambda engine: engine.rest.resume())
        for taken_back in self._pauses:
            taken_back.set()
        self._pauses.clear()
        self._refuse_or_not()

    async def sleep(self, level: SleepLevel, leaving: Leaving, wait_seconds: float) -> None:
        """As `pause`, and gives memory back.

        Raises:
            FailedPrecondition: it was not started for that.
            DeadlineExceeded, Conflict: see `pause`.
        """
        if level > SleepLevel.PAUSED and not self._options.enable_sleep_mode:
            raise FailedPrecondition(
                f"Sleep of level {level:d} gives memory back; start the engine with --enable-sleep-mode for that. "
                "Level 0 pauses it.", parameter="level",
            )  # fmt: skip

        def act(engine: SteppedEngine) -> None:
            self._leave(engine, leaving)
            engine.rest.sleep(level)

        started = time.monotonic()
        await self._rest(leaving, wait_seconds, act)
        logger.info("asleep at level %d, after %.2f s", level, time.monotonic() - started)

    async def wake_up(self, parts: Collection[str]) -> None:
        """Takes memory again; with all of it there, everything gets on. See Rest.wake_up."""
        started = time.monotonic()
        await self._exclusively(lambda engine: engine.rest.wake_up(parts))
        if not self.status.is_paused:
            logger.info("awake, after %.2f s", time.monotonic() - started)

    async def reset_prefix_cache(self, *, preempts: bool) -> None:
        """See Rest.reset_prefix_cache."""
        await self._exclusively(lambda engine: engine.rest.reset_prefix_cache(preempts))

    async def start_profile(self) -> None:
        """The ranks note what runs, for as many steps as the options say.

        Raises:
            FailedPrecondition: no folder is known, or it cannot be made.
            Conflict: they do already.
        """
        config = self._options.profiler()
        if not config.torch_profiler_dir:
            raise FailedPrecondition(
                "No folder for profiles is known; start the engine with --profiler-config "
                '\'{"torch_profiler_dir": "…"}\' (or VLLM_TORCH_PROFILER_DIR).'
            )
        if self._is_profiling:
            raise Conflict("A profile is being made already; end it by /stop_profile.")
        command = StartProfile(
            folder=config.torch_profiler_dir, name=_profile_name(),
            most_steps=config.max_iterations, first_step=config.delay_iterations,
            with_stack=config.torch_profiler_with_stack, with_shapes=config.torch_profiler_record_shapes,
            with_memory=config.torch_profiler_with_memory, is_compressed=config.torch_profiler_use_gzip,
        )  # fmt: skip

        def act(engine: SteppedEngine) -> None:
            _make_folder(command.folder)
            engine.upkeep(command)

        await self._exclusively(act)
        self._is_profiling = True

    async def stop_profile(self) -> list[str]:
        """Writes what was noted; the files, on the engine's machine, none where there was no profile."""
        files = await self._exclusively(lambda engine: engine.upkeep(StopProfile()))
        self._is_profiling = False
        return files

    @staticmethod
    def _leave(engine: SteppedEngine, leaving: Leaving) -> None:
        if leaving is Leaving.ABORT:
            engine.abort_all()

    async def _rest(self, leaving: Leaving, wait_seconds: float, act: Callable[[SteppedEngine], None]) -> None:
        was_paused, taken_back = self.status.is_paused, asyncio.Event()
        self._pauses.add(taken_back)
        self._refuse_or_not()
        try:
            if leaving is Leaving.WAIT:
                await self._wait_idle(wait_seconds, taken_back, was_paused=was_paused)
            await self._exclusively(act)
        finally:
            self._pauses.discard(taken_back)
            self._refuse_or_not()

    async def _wait_idle(self, seconds: float, taken_back: asyncio.Event, *, was_paused: bool) -> None:
        if was_paused and self._loop.num_requests:
            raise Conflict(
                f"It is paused with {self._loop.num_requests} requests, which do not get on; resume it, or choose "
                "another mode.", parameter="mode",
            )  # fmt: skip
        either = [asyncio.ensure_future(each) for each in (self._loop.wait_idle(), taken_back.wait())]
        try:
            ended, _ = await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in either:
                each.cancel()
        if taken_back.is_set():
            raise Conflict("It was resumed while its last requests were waited for.")
        if not ended:
            raise DeadlineExceeded(
                f"{self._loop.num_requests} requests have not ended within {seconds:g} s, so it goes on; allow more "
                "time, or choose the mode abort or keep.", parameter="mode",
            )  # fmt: skip

    def _refuse_or_not(self) -> None:
        """Has new requests be told what holds now."""
        if self._pauses or self._loop.load().status.is_paused:
            refusal = Unavailable("The engine is paused or sleeps; try again later, or another one.", reason=PAUSED)
        elif self._is_draining:
            refusal = Unavailable("This worker takes no new requests; try another one.", reason=DRAINING)
        else:
            refusal = None
        self._loop.refusal = refusal

    async def _exclusively(self, function: Callable[[SteppedEngine], T]) -> T:
        """In the engine's thread, after what was asked before.

        Raises:
            Overloaded: too much was.
        """
        if len(self._asked) >= _MOST_ASKED:
            raise Overloaded(f"{_MOST_ASKED} commands wait for the engine already; try again later.")
        task: asyncio.Task[T] = asyncio.create_task(self._in_turn(function))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return await asyncio.shield(task)

    async def _in_turn(self, function: Callable[[SteppedEngine], T]) -> T:
        async with self._lock:
            try:
                return await self._loop.call(function)
            finally:
                self._refuse_or_not()


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"Profiles cannot be written to {folder}: {error.strerror}.") from error


def _profile_name() -> str:
    """No other's: several workers may write to one folder."""
    return f"{time.strftime('quire-%Y%m%d-%H%M%S')}-{socket.gethostname()}-{os.getpid()}"
