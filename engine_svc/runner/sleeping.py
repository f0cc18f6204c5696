"""A model that can be put to sleep, and what becomes of its weights meanwhile."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch

from engine_svc.runner.offload import OffloadedTensors


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

    def __init__(self, make: Callable[[], Model], device: torch.device) -> None:
        """
        Args:
            make: loads it.

        Raises: what that does.
        """
        self._make = make
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

    def release(self, forgets_weights: bool) -> None:
        """More than was given back before, or as much."""
        if self.loaded is not None:
            self.loaded.release_caches()
        if forgets_weights and self.loaded is not None:
            self.loaded.close()
            self.loaded = self._offloaded = None
        gc.collect()  # what is recorded and what it was recorded from refer to each other
        if self.loaded is not None and self._offloaded is None and self._device.type == "cuda":
            self._offloaded = OffloadedTensors.of_device(self._device)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        _trim()

    def restore_weights(self) -> None:
        """
        Raises:
            StartupError: they cannot be loaded again.
        """
        if self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None
        elif self.loaded is None:
            self.loaded = self._make()


def _trim() -> None:
    """What the C library keeps for reuse goes back to the system, where it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
