"""A model that can be put to sleep, and what becomes of its weights meanwhile."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch

from engine_svc.runner.offload import OffloadedTensors
from engine_svc.upkeep import MemoryUpkeep, ReleaseMemory, RestoreCache, RestoreWeights
from quire.errors import StartupError


class Sleeper(Protocol):
    """What has the weights."""

    def release_caches(self) -> None:
        """Gives back all but the weights."""
        ...

    def close(self) -> None:
        """Ends what runs beside the steps."""
        ...


Model = TypeVar("Model", bound=Sleeper)


class SleepingModel(Generic[Model]):
    """On a GPU the weights of one that sleeps lie in host memory, or nowhere. On a CPU they stay where they are, or are
    nowhere: then the model goes, and another one is made of the same files.
    """

    def __init__(self, make: Callable[[], Model], allocate: Callable[[Model], None], device: torch.device) -> None:
        """
        Args:
            make: loads it.
            allocate: gives it all but the weights, again.

        Raises: what `make` does.
        """
        self._make, self._allocate = make, allocate
        self._device = device
        self._offloaded: OffloadedTensors | None = None
        self.loaded: Model | None = make()

    @property
    def awake(self) -> Model:
        """
        Raises:
            RuntimeError: its weights were given back.
        """
        if self.loaded is None:
            raise RuntimeError("the model sleeps, and its weights were given back")
        return self.loaded

    def upkeep(self, command: MemoryUpkeep) -> None:
        """Obeys.

        Raises:
            StartupError: the weights cannot be loaded again, or there is no room; everything is as it was.
        """
        if isinstance(command, ReleaseMemory):
            self._release(command.forgets_weights)
            return
        try:
            self._restore(command)
        except (MemoryError, torch.OutOfMemoryError) as error:
            failure = f"Not enough memory: {error}"
        else:
            return
        # Behind the handler, for the error refers to what was allocated in vain.
        if isinstance(command, RestoreCache):
            self.awake.release_caches()
        self._trim()
        raise StartupError(failure)

    def _release(self, forgets_weights: bool) -> None:
        """More than was given back before, or as much."""
        if self.loaded is not None:
            self.loaded.release_caches()
        if forgets_weights and self.loaded is not None:
            self.loaded.close()
            self.loaded = self._offloaded = None
        gc.collect()  # what is recorded and what it was recorded from refer to each other
        if self.loaded is not None and self._offloaded is None and self._device.type == "cuda":
            self._offloaded = OffloadedTensors.of_device(self._device)
        self._trim()

    def _restore(self, command: RestoreWeights | RestoreCache) -> None:
        if isinstance(command, RestoreCache):
            self._allocate(self.awake)
        elif self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None
        elif self.loaded is None:
            self.loaded = self._make()

    def _trim(self) -> None:
        """What is kept for reuse goes back to the device and, where the C library is glibc, to the system."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
