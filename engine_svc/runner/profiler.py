"""Torch's profiler for the steps of a rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from engine_svc.upkeep import StartProfile

logger = logging.getLogger(__name__)


class RankProfiler:
    """Profiles steps from `start` until `stop`, or until it has recorded the requested number of steps.

    The profile is kept in memory until it is written, to one file per rank that chrome://tracing and Perfetto can read.
    """

    def __init__(self, rank: int, device: torch.device, settle: Callable[[], None]) -> None:
        """
        Args:
            settle: waits until no communication between ranks is under way: torch's profiler fails if some of it starts
                before the profiler or ends after it.
        """
        self._settle = settle
        self._rank = rank
        self._device = device
        self._wanted: StartProfile | None = None
        self._running: profile | None = None
        self._steps = 0  # since `start`
        self._written: list[str] = []

    def start(self, wanted: StartProfile) -> None:
        """Profiles steps from now on, or from a later step on. Does nothing if profiling has been started already."""
        if self._wanted is None:
            self._wanted, self._steps, self._written = wanted, 0, []
            if not wanted.first_step:
                self._begin(wanted)

    def begin_step(self) -> None:
        """Called before each step: begins or ends the profile if it is time to."""
        wanted = self._wanted
        if wanted is None:
            return
        if self._steps == wanted.first_step and self._running is None:
            self._begin(wanted)
        if self._steps == wanted.first_step + wanted.most_steps:
            self._finish(wanted)
        self._steps += 1

    def part(self, name: str) -> AbstractContextManager[object]:
        """Context whose work appears in the profile under a name; a recorded step shows nothing else."""
        return nullcontext() if self._running is None else record_function(name)

    def stop(self) -> list[str]:
        """Writes the profile, unless that is done already; returns the files written since the last `start`."""
        if self._wanted is not None:
            self._finish(self._wanted)
            self._wanted = None
        written, self._written = self._written, []
        return written

    def _begin(self, wanted: StartProfile) -> None:
        self._settle()
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(
            activities=activities, with_stack=wanted.with_stack, record_shapes=wanted.with_shapes,
            profile_memory=wanted.with_memory,
        )  # fmt: skip
        self._running.start()

    def _finish(self, wanted: StartProfile) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        self._settle()
        running.stop()
        ending = ".pt.trace.json.gz" if wanted.is_compressed else ".pt.trace.json"
        file = Path(wanted.folder) / f"{wanted.name}.rank{self._rank}{ending}"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(file))
        except (OSError, RuntimeError) as error:  # a full disk must cost only the profile, not the engine
            logger.error("the profile cannot be written to %s: %s", file, error)
            return
        logger.info("%d steps were profiled in %s", self._steps - wanted.first_step, file)
        self._written.append(str(file))
