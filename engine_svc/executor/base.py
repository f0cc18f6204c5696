"""The contract of executors, which run the engine's model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from engine_svc.executor.choice import choose_executor
from engine_svc.plan import CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.upkeep import Upkeep
from quire.options.engine import EngineOptions
from quire.options.executor import EXECUTOR_NAMES
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from quire.registry import load_entry, registry

# Loaded by name, so that the control side never imports torch: the compute side is imported in `load`.
EXECUTORS = registry(
    "--distributed-executor-backend",
    EXECUTOR_NAMES,
    {
        "uni": "engine_svc.executor.uniproc:UniprocExecutor",
        "mp": "engine_svc.executor.multiproc:MultiprocExecutor",
        "ray": "engine_svc.executor.ray:RayExecutor",
        "external_launcher": "engine_svc.executor.external:ExternalExecutor",
    },
)


class ExecutorDead(Exception):
    """The executor cannot run another step: a rank process is gone, or the device is lost."""


class Executor(ABC):
    """Runs steps on all ranks of a worker.

    Called from one thread, in this order: load, allocate, submit and collect any number of times, with upkeep in
    between, close.

    Attributes:
        max_in_flight: most steps that may be submitted and not yet collected. More than one if steps run
            asynchronously.
        spans_machines: whether ranks may be on other machines.
    """

    max_in_flight: int = 1
    spans_machines: bool = False

    @abstractmethod
    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        """Loads the weights on every rank.

        Raises:
            StartupError: the model does not exist or is not supported, or there is not enough memory for the weights.
        """

    @abstractmethod
    def allocate(self, size: CacheSize) -> None:
        """Allocates the KV cache, its second tier and places for states on every rank, and warms up the kernels.

        Raises:
            StartupError: there is not enough host memory.
        """

    @abstractmethod
    def submit(self, plan: StepPlan) -> None:
        """Begins a step, which runs after those submitted before.

        Raises:
            ExecutorDead: no further step can succeed. Any other exception fails this step's requests only.
        """

    @abstractmethod
    def send_masks(self, masks: TokenMasks) -> None:
        """Sends the token masks of the step submitted last, which lets it sample.

        Called once for each plan that awaits masks, before another step is submitted or this one collected.

        Raises: as `submit`.
        """

    @abstractmethod
    def collect(self) -> StepResult:
        """Waits for the oldest step that is not collected yet and returns its result.

        Raises: as `submit`.
        """

    def wake_by(self, wake: Callable[[], None]) -> None:  # noqa: B027  (what runs in this process has nothing to say)
        """Registers a function to be called, from any thread, when `check_alive` would raise because a rank is lost."""

    def check_alive(self, asks: bool = False) -> None:  # noqa: B027
        """Checks that the ranks are alive, while no step runs.

        Args:
            asks: also probe the ranks and wait for their answers.

        Raises:
            ExecutorDead: no further step can succeed.
        """

    @abstractmethod
    def upkeep(self, command: Upkeep) -> list[str]:
        """Runs a command other than a step on every rank; returns the answers of all of them. No step may be under way.

        After ReleaseMemory, steps may be submitted again once RestoreWeights and then RestoreCache are done. Each
        command may be sent more than once.

        Raises:
            StartupError: the weights cannot be read again, or there is not enough memory; nothing has changed.
            ExecutorDead: see `submit`.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees everything and ends rank processes. May be called twice."""


def create_executor(
    options: ParallelOptions, device: str = "auto", config: Mapping[str, Any] | None = None
) -> Executor:
    """Creates the executor that the options name, or the one that choose_executor chooses; raises like that."""
    name = choose_executor(options, device, config)
    executor: Executor = load_entry("--distributed-executor-backend", EXECUTORS, name)()
    return executor
