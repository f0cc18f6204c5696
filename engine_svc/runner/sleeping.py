"""A model that can be put to sleep, and where its weights are meanwhile."""

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
    """The loaded model that can be put to sleep."""

    def release_caches(self) -> None:
        """Frees everything except the weights."""
        ...

    def close(self) -> None:
        """Stops background work."""
        ...


Model = TypeVar("Model", bound=Sleeper)


class SleepingModel(Generic[Model]):
    """A model that can sleep.

    While it sleeps, its weights are dropped, or kept: on a GPU in host memory, on a CPU where they are. If they are
    dropped, so is the model, and waking it up loads a new one, from the same folder or another one.
    """

    def __init__(
        self, make: Callable[[str, str], Model], allocate: Callable[[Model], None], device: torch.device
    ) -> None:
        """
        Args:
            make: loads the model from a folder, and its draft model, if any, from another one; an empty name stands for
                the one that the options name.
            allocate: allocates everything except the weights again.

        Raises: whatever `make` raises.
        """
        self._make, self._allocate = make, allocate
        self._device = device
        self._offloaded: OffloadedTensors | None = None
        self._folders = ("", "")
        self.loaded: Model | None = make(*self._folders)

    @property
    def awake(self) -> Model:
        """The loaded model.

        Raises:
            RuntimeError: the model sleeps and its weights were given back.
        """
        if self.loaded is None:
            raise RuntimeError("the model is asleep, and its weights were freed")
        return self.loaded

    def upkeep(self, command: MemoryUpkeep) -> None:
        """Executes the command.

        Raises:
            StartupError: the weights cannot be loaded again, or there is not enough memory; nothing has changed then.
        """
        if isinstance(command, ReleaseMemory):
            self._release(command)
            return
        try:
            self._restore(command)
        except StartupError as error:
            failure = str(error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            failure = f"Not enough memory: {error}"
        else:
            return
        # After the handler, because the error object keeps references to what was allocated in vain.
        if isinstance(command, RestoreCache):
            self.awake.release_caches()
        self._trim()
        raise StartupError(failure)

    def _release(self, command: ReleaseMemory) -> None:
        """Frees the caches, and offloads or drops the weights; may be called again to do so later."""
        if self.loaded is not None:
            self.loaded.release_caches()
        if command.forgets_weights and self.loaded is not None:
            self.loaded.close()
            self.loaded = self._offloaded = None
        gc.collect()  # recordings and what they were recorded from refer to each other
        offloads = self._device.type == "cuda" and not command.keeps_weights
        if offloads and self.loaded is not None and self._offloaded is None:
            self._offloaded = OffloadedTensors.of_device(self._device)
        self._trim()

    def _restore(self, command: RestoreWeights | RestoreCache) -> None:
        if isinstance(command, RestoreCache):
            self._allocate(self.awake)
        elif self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None
        elif self.loaded is None:
            folder, draft_folder = self._folders
            folders = command.folder or folder, command.draft_folder or draft_folder
            self.loaded, self._folders = self._make(*folders), folders

    def _trim(self) -> None:
        """Returns memory cached for reuse to the device and, if the C library is glibc, to the system."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
