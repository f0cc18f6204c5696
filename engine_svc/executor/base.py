"""The contract between the engine and whatever runs its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from engine_svc.executor.choice import choose_executor
from engine_svc.plan import KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.upkeep import Upkeep
from quire.options.engine import EngineOptions
from quire.options.executor import EXECUTOR_NAMES
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from quire.registry import load_entry, registry

# Loaded by name, so that the control side never imports torch: the compute side comes up inside `load`.
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
    """The executor will not run another step: a rank process is gone, or the device is lost."""


class Executor(ABC):
    """Runs steps on all ranks of a worker. Called from one thread: load, allocate, submit and collect…, upkeep between
    them, close.

    Attributes:
        max_in_flight: steps that may have been submitted and not collected. More than one where they run while the
            caller does something else.
    """

    max_in_flight: int = 1

    @abstractmethod
    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        """Loads the weights on every rank.

        Raises:
            StartupError: no such model, unsupported architecture, not enough memory for the weights.
        """

    @abstractmethod
    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Allocates a KV cache of `num_blocks` blocks, and its second tier, on every rank; warms the kernels up.

        Raises:
            StartupError: there is not enough memory in the host.
        """

    @abstractmethod
    def submit(self, plan: StepPlan) -> None:
        """Begins a step that runs behind those submitted before.

        Raises:
            ExecutorDead: no further step can succeed. Any other exception fails this step's requests only.
        """

    @abstractmethod
    def send_masks(self, masks: TokenMasks) -> None:
        """Lets the step that was submitted last sample. Called once for each plan that awaits masks, and before another
        step is submitted or this one collected.

        Raises: as `submit`.
        """

    @abstractmethod
    def collect(self) -> StepResult:
        """Waits until the oldest step that is not collected has sampled its tokens.

        Raises: as `submit`.
        """

    def wake_by(self, wake: Callable[[], None]) -> None:  # noqa: B027  (what runs in this process has nothing to say)
        """Has this called, from any thread, when `check_alive` has something to say that nobody here has caused."""

    def check_alive(self, asks: bool = False) -> None:  # noqa: B027
        """Looks after what runs steps, where none runs.

        Args:
            asks: has the ranks say that they are there, and waits for that.

        Raises:
            ExecutorDead: no further step can succeed.
        """

    @abstractmethod
    def upkeep(self, command: Upkeep) -> list[str]:
        """Has every rank do what is no step; what all of them answer. No step is under way.

        After ReleaseMemory, steps may be submitted again once RestoreWeights and, after it, RestoreCache are done. Each
        may come more than once.

        Raises:
            StartupError: the weights cannot be read again, or there is no room; everything is as it was.
            ExecutorDead: see `submit`.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees everything and ends rank processes. May be called twice."""


def create_executor(
    options: ParallelOptions, device: str = "auto", config: Mapping[str, Any] | None = None
) -> Executor:
    """The executor that the options name, or the one that choose_executor finds; raises as that."""
    name = choose_executor(options, device, config)
    executor: Executor = load_entry("--distributed-executor-backend", EXECUTORS, name)()
    return executor
