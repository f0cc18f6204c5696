"""Commands of operators to an engine: drain, pause, sleep, reset the prefix cache, and profile.

Each command is idempotent. Commands are carried out one after the other and always to the end, even if the caller has
stopped waiting.
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
from engine_svc.upkeep import CheckWeights, StartProfile, StopProfile, TransferUpkeep
from quire.errors import (
    DRAINING,
    PAUSED,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from quire.options.upkeep import UpkeepOptions
from quire.sleep import Leaving, SleepLevel

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MOST_ASKED = 64


class Administration:
    """Carries out operator commands. Its methods are for the event loop of the engine's `loop`."""

    def __init__(self, loop: EngineLoop, options: UpkeepOptions) -> None:
        self._loop = loop
        self._options = options
        self._lock = asyncio.Lock()
        self._asked: set[asyncio.Task[object]] = set()
        self._is_draining = False
        # Pauses that wait for requests to end or for their turn. An event is set when a resume cancels its pause.
        self._pauses: set[asyncio.Event] = set()
        self._is_profiling = False

    @property
    def status(self) -> EngineStatus:
        """Current status of the engine.

        Raises:
            Unavailable: the engine is not built yet.
        """
        return self.complete(self._loop.load().status)

    def complete(self, status: EngineStatus) -> EngineStatus:
        """Adds what is known here, draining and profiling, to the engine's status."""
        return dataclasses.replace(status, is_draining=self._is_draining, is_profiling=self._is_profiling)

    def drain(self, wanted: bool) -> None:
        """Stops taking new requests, or takes them again. Existing requests are not affected."""
        self._is_draining = wanted
        self._refuse_or_not()

    async def pause(self, leaving: Leaving, wait_seconds: float, *, clears_cache: bool) -> None:
        """Pauses the engine: requests make no progress, and no new ones are taken.

        Args:
            leaving: what happens to the existing requests.
            wait_seconds: how long to wait for them to end, with Leaving.WAIT.
            clears_cache: clear the prefix cache too, unless requests are kept.

        Raises:
            DeadlineExceeded: the requests have not ended in time; nothing is changed.
            Conflict: the requests cannot end because the engine is paused already, or it was resumed in the meantime.
        """

        def act(engine: SteppedEngine) -> None:
            self._leave(engine, leaving)
            engine.rest.pause()
            if clears_cache and leaving is not Leaving.KEEP:
                engine.rest.reset_prefix_cache(preempts=False)

        await self._rest(leaving, wait_seconds, act)

    async def resume(self) -> None:
        """Continues paused requests and takes new ones again.

        Raises:
            Conflict: the engine sleeps and has released memory.
        """
        await self._exclusively(lambda engine: engine.rest.resume())
        for taken_back in self._pauses:
            taken_back.set()
        self._pauses.clear()
        self._refuse_or_not()

    async def sleep(self, level: SleepLevel, leaving: Leaving, wait_seconds: float) -> None:
        """Pauses like `pause`, and releases memory.

        Raises:
            FailedPrecondition: the engine was started without --enable-sleep-mode.
            DeadlineExceeded, Conflict: see `pause`.
        """
        if level > SleepLevel.PAUSED:
            self._check_sleep_mode(
                f"For sleep level {level:d}, which frees memory (level 0 only pauses the engine)", "level"
            )

        def act(engine: SteppedEngine) -> None:
            self._leave(engine, leaving)
            engine.rest.sleep(level)

        started = time.monotonic()
        await self._rest(leaving, wait_seconds, act)
        logger.info("asleep at level %d, after %.2f s", level, time.monotonic() - started)

    async def wake_up(self, parts: Collection[str]) -> None:
        """Restores memory; once all of it is there, the engine resumes. See Rest.wake_up."""
        started = time.monotonic()
        await self._exclusively(lambda engine: engine.rest.wake_up(parts))
        if not self.status.is_paused:
            logger.info("awake, after %.2f s", time.monotonic() - started)

    async def check_weights(self, folder: str) -> None:
        """
        Raises:
            InvalidRequest: the weights in a folder cannot replace the served ones.
        """
        await self._exclusively(lambda engine: self._check_weights(engine, folder))

    async def update_weights(
        self, folder: str, version: str, leaving: Leaving, wait_seconds: float, replaced: Callable[[], None],
        draft_folder: str = "",
    ) -> None:  # fmt: skip
        """Replaces the weights; see Rest.replace_weights.

        Args:
            leaving, wait_seconds: see `pause`. If the engine is paused already, there is nothing to wait for, so
                requests are kept unless they are to be aborted.
            replaced: called in the engine's thread.
            draft_folder: see Rest.replace_weights.

        Raises:
            InvalidRequest: see `check_weights`.
            DeadlineExceeded: the requests have not ended in time; nothing is changed.
            Conflict: the engine was resumed while they were waited for.
            FailedPrecondition, Unavailable: see Rest.replace_weights.
        """

        def act(engine: SteppedEngine) -> None:
            def named() -> None:
                engine.name_weights(version)
                replaced()

            self._check_weights(engine, folder)  # it may have been deleted while requests were waited for
            self._leave(engine, leaving)
            engine.rest.replace_weights(folder, named, draft_folder)

        if leaving is Leaving.WAIT and self.status.is_paused:
            leaving = Leaving.KEEP
        started = time.monotonic()
        await self._rest(leaving, wait_seconds, act)
        logger.info("weights of %s loaded, after %.2f s", folder, time.monotonic() - started)

    async def name_weights(self, version: str) -> None:
        """Gives the served weights another version."""
        await self._exclusively(lambda engine: engine.name_weights(version))

    async def upkeep(self, command: TransferUpkeep) -> list[str]:
        """Has the ranks run a command; returns their answers. Steps stop meanwhile."""
        return await self._exclusively(lambda engine: engine.upkeep(command))

    async def release_cache(self) -> None:
        """Releases the KV cache of a paused engine.

        Raises:
            FailedPrecondition: the engine was started without --enable-sleep-mode.
            Conflict, Unavailable: see Rest.release_cache.
        """
        self._check_sleep_mode("To release the KV cache")
        await self._exclusively(lambda engine: engine.rest.release_cache())

    async def reset_prefix_cache(self, *, preempts: bool) -> None:
        """See Rest.reset_prefix_cache."""
        await self._exclusively(lambda engine: engine.rest.reset_prefix_cache(preempts))

    async def reset_encoder_cache(self) -> None:
        """See Rest.reset_encoder_cache."""
        await self._exclusively(lambda engine: engine.rest.reset_encoder_cache())

    async def start_profile(self) -> None:
        """Starts a profile on the ranks, for as many steps as the options say.

        Raises:
            FailedPrecondition: no folder is configured, or it cannot be created.
            Conflict: a profile is already running.
        """
        config = self._options.profiler()
        if not config.torch_profiler_dir:
            raise FailedPrecondition(
                "No folder for profiles is known; start the engine with --profiler-config "
                '\'{"torch_profiler_dir": "…"}\' (or VLLM_TORCH_PROFILER_DIR).'
            )
        if self._is_profiling:
            raise Conflict("A profile is already being recorded; stop it with /stop_profile.")
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
        """Ends the profile and returns the files written on the engine's machine; none if there was no profile."""
        files = await self._exclusively(lambda engine: engine.upkeep(StopProfile()))
        self._is_profiling = False
        return files

    def _check_sleep_mode(self, what_for: str, parameter: str = "") -> None:
        if not self._options.enable_sleep_mode:
            raise FailedPrecondition(f"{what_for}, start the engine with --enable-sleep-mode.", parameter=parameter)

    @staticmethod
    def _check_weights(engine: SteppedEngine, folder: str) -> None:
        if answers := engine.upkeep(CheckWeights(folder)):
            raise InvalidRequest(f"{answers[0]}. Nothing has changed.", parameter="model_path")

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
                f"The engine is paused with {self._loop.num_requests} requests, which make no progress; resume it, "
                "or choose another mode.", parameter="mode",
            )  # fmt: skip
        either = [asyncio.ensure_future(each) for each in (self._loop.wait_idle(), taken_back.wait())]
        try:
            ended, _ = await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in either:
                each.cancel()
        if taken_back.is_set():
            raise Conflict("The engine was resumed while its last requests were still finishing.")
        if not ended:
            raise DeadlineExceeded(
                f"{self._loop.num_requests} requests have not finished within {seconds:g} s, so the engine "
                "continues; allow more time, or choose the mode abort or keep.", parameter="mode",
            )  # fmt: skip

    def _refuse_or_not(self) -> None:
        """Updates the error that new requests are refused with."""
        if self._pauses or self._loop.load().status.is_paused:
            refusal = Unavailable("The engine is paused or asleep; try again later, or try another one.", reason=PAUSED)
        elif self._is_draining:
            refusal = Unavailable("This worker takes no new requests; try another one.", reason=DRAINING)
        else:
            refusal = None
        self._loop.refusal = refusal

    async def _exclusively(self, function: Callable[[SteppedEngine], T]) -> T:
        """Runs a function in the engine's thread, after all earlier commands.

        Raises:
            Overloaded: too many commands are waiting.
        """
        if len(self._asked) >= _MOST_ASKED:
            raise Overloaded(f"{_MOST_ASKED} commands are already waiting for the engine; try again later.")
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
    """A unique name, because several workers may write to one folder."""
    return f"{time.strftime('quire-%Y%m%d-%H%M%S')}-{socket.gethostname()}-{os.getpid()}"
