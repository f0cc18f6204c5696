"""An engine at rest: paused, so that its sequences make no progress, or asleep, with its memory released."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.requests.outputs import EngineStatus
from engine_svc.scheduler.scheduler import Scheduler
from engine_svc.upkeep import ReleaseMemory, RestoreCache, RestoreWeights, Upkeep
from quire.errors import Conflict, FailedPrecondition, StartupError, Unavailable
from quire.sleep import KV_CACHE, WEIGHTS, SleepLevel

# Time limit for canceled transfers to end and for adapters to be read.
_TRANSFER_SECONDS = 30.0
_LOOK_SECONDS = 0.001
_MEMORY = frozenset((WEIGHTS, KV_CACHE))
_NO_CACHE = "The KV cache cannot be allocated, so the engine stays asleep"


class HeldWork(Protocol):
    """The work that an engine holds while it rests.

    Attributes:
        is_paused: no sequence makes progress.
    """

    is_paused: bool

    def settle(self) -> None:
        """Waits for all steps that have been submitted."""
        ...

    def let_go(self) -> None:
        """Releases everything that depends on device memory; it is recomputed later.

        Raises:
            Unavailable: transfers under way do not end in time.
        """
        ...

    def forget_weights(self) -> None:
        """Marks weights loaded besides the model's, such as adapters, to be loaded again."""
        ...

    def reset_prefix_cache(self, preempts: bool) -> None:
        """See Rest.reset_prefix_cache."""
        ...

    def reset_encoder_cache(self) -> None:
        """See Rest.reset_encoder_cache."""
        ...


class Rest:
    """Pauses and resumes the engine, and releases and restores its memory. Only reads may come from other threads.

    Attributes:
        level: current sleep level; None while awake.
        asleep: parts of the memory that are released. While there are any, no steps run at all.
    """

    def __init__(self, upkeep: Callable[[Upkeep], object], held: HeldWork) -> None:
        """
        Args:
            upkeep: runs a command on the model's ranks.
        """
        self._upkeep = upkeep
        self._held = held
        self.level: SleepLevel | None = None
        self.asleep: frozenset[str] = frozenset()

    @property
    def is_paused(self) -> bool:
        """Whether sequences make no progress."""
        return self._held.is_paused

    def status(self) -> EngineStatus:
        """Status as reported to callers."""
        return EngineStatus(is_paused=self.is_paused, sleep_level=self.level, asleep=tuple(sorted(self.asleep)))

    def pause(self) -> None:
        """Stops the progress of all sequences; they keep what they hold."""
        self._held.is_paused = True
        self._held.settle()

    def resume(self) -> None:
        """Continues all sequences where they stopped.

        Raises:
            Conflict: memory is released.
        """
        if self.asleep:
            raise Conflict(
                f"The engine is asleep at level {self.level}: {' and '.join(sorted(self.asleep))} are not in memory. "
                "Wake it with /wake_up."
            )
        self._held.is_paused, self.level = False, None

    def reset_prefix_cache(self, preempts: bool) -> None:
        """Empties the prefix cache: blocks computed so far are not found any more, but running sequences keep theirs.

        Args:
            preempts: running sequences do not keep their blocks, and are recomputed.
        """
        if not self.asleep:  # otherwise there is no cache
            self._held.reset_prefix_cache(preempts)

    def reset_encoder_cache(self) -> None:
        """Forgets what has been encoded of images, videos and audio. Sequences that wait for some of it get it encoded
        again; those that run need it no more."""
        self._held.reset_encoder_cache()

    def sleep(self, level: SleepLevel) -> None:
        """Pauses and releases memory. Does nothing if it already sleeps as deeply and no part has been woken."""
        has_released = level is SleepLevel.PAUSED or self.asleep == _MEMORY
        if self.level is not None and level <= self.level and has_released:
            return
        if not self.asleep:
            self.pause()
        if level > SleepLevel.PAUSED:
            self._release(forgets_weights=level is SleepLevel.WEIGHTS_FORGOTTEN)
        self.level = level

    def release_cache(self) -> None:
        """Releases the KV cache of a paused engine, which is then asleep at level 0.

        Raises:
            Conflict: it is not paused, or has released memory already.
            Unavailable: see HeldWork.let_go.
        """
        if self.asleep or not self.is_paused:
            raise Conflict(
                "The KV cache can be released of an engine that is paused, and has all of its memory: "
                + ("wake it with /wake_up first." if self.asleep else "use /pause first.")
            )
        self._held.let_go()
        self._upkeep(ReleaseMemory(keeps_weights=True))
        self.level, self.asleep = SleepLevel.PAUSED, frozenset((KV_CACHE,))

    def _release(self, *, forgets_weights: bool) -> None:
        """Releases all memory; sequences hold nothing then and are recomputed later."""
        if not self.asleep:
            self._held.let_go()
        if forgets_weights:
            self._held.forget_weights()
        self._upkeep(ReleaseMemory(forgets_weights))
        self.asleep = _MEMORY

    def wake_up(self, parts: Collection[str]) -> None:
        """Restores parts of the memory; once everything is there, resumes.

        Raises:
            Conflict: the KV cache would be restored before the weights.
            FailedPrecondition: there is not enough memory, or the weights cannot be read; the engine stays asleep.
        """
        if WEIGHTS in parts and WEIGHTS in self.asleep:
            self._restore(RestoreWeights(), "The weights cannot be reloaded, so the engine stays asleep")
            self.asleep -= {WEIGHTS}
        if KV_CACHE in parts and KV_CACHE in self.asleep:
            if WEIGHTS in self.asleep:
                raise Conflict("The weights are asleep: wake them first, or both together.", parameter="tags")
            self._restore(RestoreCache(), _NO_CACHE)
            self.asleep = frozenset()
        if not self.asleep:
            self.resume()

    def replace_weights(self, folder: str, replaced: Callable[[], None], draft_folder: str = "") -> None:
        """Loads other weights. Then it is as awake as before; no sequence holds anything, and all are recomputed.

        Args:
            folder: of the new weights.
            replaced: called once they are loaded, before anything is computed with them.
            draft_folder: of new weights of the draft model; empty means that these stay.

        Raises:
            Unavailable: see HeldWork.let_go.
            FailedPrecondition: they cannot be loaded, or there is not enough memory; the engine is asleep then.
        """
        was_paused, level, restores_cache = self.is_paused, self.level, KV_CACHE not in self.asleep
        if not self.asleep:
            self.pause()
        self._release(forgets_weights=True)
        self.level = SleepLevel.WEIGHTS_FORGOTTEN
        self._restore(
            RestoreWeights(folder, draft_folder),
            "The new weights could not be loaded, so the engine is asleep, with none. /wake_up loads the previous ones "
            "again; or send complete files, and then /wake_up",
        )
        replaced()
        self.asleep -= {WEIGHTS}
        if restores_cache:
            self._restore(RestoreCache(), _NO_CACHE)
            self.asleep = frozenset()
        self.level = level
        if not was_paused:
            self.resume()

    def _restore(self, command: Upkeep, failure: str) -> None:
        try:
            self._upkeep(command)
        except StartupError as error:
            raise FailedPrecondition(f"{failure}: {error}") from error


class ScheduledWork:
    """HeldWork of an engine that generates."""

    def __init__(
        self, scheduler: Scheduler, kv_cache: KvCacheManager, collect: Callable[[], None], step: Callable[[], None]
    ) -> None:
        """
        Args:
            collect: waits for all steps that are under way.
            step: runs a step, which has no sequences while the scheduler is paused.
        """
        self._scheduler = scheduler
        self._kv_cache = kv_cache
        self._step = step
        self.settle = collect

    @property
    def is_paused(self) -> bool:
        """See HeldWork."""
        return self._scheduler.is_paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        self._scheduler.is_paused = paused

    def let_go(self) -> None:
        """See HeldWork.let_go. Transfers are canceled, and steps are run until they have ended."""
        self._scheduler.preempt_all()
        self._kv_cache.clear()
        deadline = time.monotonic() + _TRANSFER_SECONDS
        while self._scheduler.is_transferring:
            if time.monotonic() > deadline:
                raise Unavailable("Transfers of blocks or adapters do not finish; the engine is paused. Try again.")
            self._step()
            time.sleep(_LOOK_SECONDS)

    def forget_weights(self) -> None:
        """See HeldWork.forget_weights."""
        self._scheduler.adapters.forget_memory()
        self.reset_encoder_cache()

    def reset_prefix_cache(self, preempts: bool) -> None:
        """See Rest.reset_prefix_cache."""
        if preempts:
            self.settle()
            self._scheduler.preempt_all()
        self._kv_cache.clear(self._scheduler.live_tables())

    def reset_encoder_cache(self) -> None:
        """See Rest.reset_encoder_cache."""
        self._scheduler.images.forget_memory()
