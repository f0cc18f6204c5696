"""An engine at rest: it takes no steps, and may have given its memory back meanwhile."""

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

# Transfers that are cancelled end within this time, and adapters are read.
_TRANSFER_SECONDS = 30.0
_LOOK_SECONDS = 0.001
_MEMORY = frozenset((WEIGHTS, KV_CACHE))


class HeldWork(Protocol):
    """What an engine at rest has under way.

    Attributes:
        is_paused: none of it gets on.
    """

    is_paused: bool

    def settle(self) -> None:
        """Waits for what has been handed to the model."""
        ...

    def let_go(self) -> None:
        """Nothing of it stands on the memory any more: it is computed anew later.

        Raises:
            Unavailable: what is being copied does not arrive.
        """
        ...

    def forget_weights(self) -> None:
        """What was loaded beside the model is to be loaded again."""
        ...

    def reset_prefix_cache(self, preempts: bool) -> None:
        """See Rest.reset_prefix_cache."""
        ...


class Rest:
    """Says whether steps may run, and what of the memory is there. Called in the engine's thread, but for what it says.

    Attributes:
        level: of the sleep that it is in; None while it is awake.
        asleep: the parts of the memory that are not there. Without them there are no steps at all.
    """

    def __init__(self, upkeep: Callable[[Upkeep], object], held: HeldWork) -> None:
        """
        Args:
            upkeep: has the model's ranks do it.
        """
        self._upkeep = upkeep
        self._held = held
        self.level: SleepLevel | None = None
        self.asleep: frozenset[str] = frozenset()

    @property
    def is_paused(self) -> bool:
        """No sequence gets on."""
        return self._held.is_paused

    def status(self) -> EngineStatus:
        """What of it others are told."""
        return EngineStatus(is_paused=self.is_paused, sleep_level=self.level, asleep=tuple(sorted(self.asleep)))

    def pause(self) -> None:
        """From now on no sequence gets on; what there is of them stays."""
        self._held.is_paused = True
        self._held.settle()

    def resume(self) -> None:
        """All get on where they stopped.

        Raises:
            Conflict: the memory for that is not there.
        """
        if self.asleep:
            raise Conflict(
                f"The engine sleeps at level {self.level}: {' and '.join(sorted(self.asleep))} are not there. Wake it "
                "by /wake_up."
            )
        self._held.is_paused, self.level = False, None

    def reset_prefix_cache(self, preempts: bool) -> None:
        """What was computed so far is found by nobody any more; the running sequences keep what they have.

        Args:
            preempts: they do not, and are computed anew.
        """
        if not self.asleep:  # otherwise nothing is kept
            self._held.reset_prefix_cache(preempts)

    def sleep(self, level: SleepLevel) -> None:
        """Pauses, and gives memory back; one that sleeps deeper does so still, if no part of it has been woken."""
        has_released = level is SleepLevel.PAUSED or self.asleep == _MEMORY
        if self.level is not None and level <= self.level and has_released:
            return
        if not self.asleep:
            self.pause()
        if level > SleepLevel.PAUSED:
            self._release(forgets_weights=level is SleepLevel.WEIGHTS_FORGOTTEN)
        self.level = level

    def _release(self, *, forgets_weights: bool) -> None:
        """Sequences hold nothing then, and are computed anew later."""
        if not self.asleep:
            self._held.let_go()
        if forgets_weights:
            self._held.forget_weights()
        self._upkeep(ReleaseMemory(forgets_weights))
        self.asleep = _MEMORY

    def wake_up(self, parts: Collection[str]) -> None:
        """Takes memory again; with all of it there, everything gets on.

        Raises:
            Conflict: the KV cache is to come before the weights.
            FailedPrecondition: there is not enough memory, or the weights cannot be read any more; it sleeps on.
        """
        if WEIGHTS in parts and WEIGHTS in self.asleep:
            self._restore(RestoreWeights(), "The weights cannot be read again")
            self.asleep -= {WEIGHTS}
        if KV_CACHE in parts and KV_CACHE in self.asleep:
            if WEIGHTS in self.asleep:
                raise Conflict("The weights sleep: wake them first, or both.", parameter="tags")
            self._restore(RestoreCache(), "The KV cache cannot be allocated")
            self.asleep = frozenset()
        if not self.asleep:
            self.resume()

    def _restore(self, command: Upkeep, failure: str) -> None:
        try:
            self._upkeep(command)
        except StartupError as error:
            raise FailedPrecondition(f"{failure}, so it sleeps on: {error}") from error


class ScheduledWork:
    """That of an engine that generates."""

    def __init__(
        self, scheduler: Scheduler, kv_cache: KvCacheManager, collect: Callable[[], None], step: Callable[[], None]
    ) -> None:
        """
        Args:
            collect: waits for all steps that are under way.
            step: runs one; it has no sequences while the scheduler is paused.
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
        """See HeldWork.let_go. Transfers are cancelled, and get to their end by steps."""
        self._scheduler.preempt_all()
        self._kv_cache.clear()
        deadline = time.monotonic() + _TRANSFER_SECONDS
        while self._scheduler.is_transferring:
            if time.monotonic() > deadline:
                raise Unavailable("Blocks or adapters are on their way, and do not arrive; it is paused. Try again.")
            self._step()
            time.sleep(_LOOK_SECONDS)

    def forget_weights(self) -> None:
        """See HeldWork.forget_weights."""
        self._scheduler.adapters.forget_memory()

    def reset_prefix_cache(self, preempts: bool) -> None:
        """See Rest.reset_prefix_cache."""
        if preempts:
            self.settle()
            self._scheduler.preempt_all()
        self._kv_cache.clear(self._scheduler.live_tables())
