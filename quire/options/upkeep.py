"""Options for what operators may ask of a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from quire.options.base import option

NCCL = "nccl"


class ProfilerConfig(msgspec.Struct, frozen=True):
    """Keys of --profiler-config, with their defaults."""

    profiler: Literal["torch"] = "torch"
    torch_profiler_dir: str = ""
    max_iterations: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    delay_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    torch_profiler_with_stack: bool = False
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    torch_profiler_use_gzip: bool = True


class WeightTransferConfig(msgspec.Struct, frozen=True):
    """Keys of --weight-transfer-config, with their defaults."""

    backend: str = NCCL
    folder: str = ""

    def __post_init__(self) -> None:
        if self.backend != NCCL:
            why = (
                "its handles of memory are pickled objects, which Quire never reads; " if self.backend == "ipc" else ""
            )
            raise ValueError(f"backend is {self.backend[:50]!r}; {why}it must be {NCCL}.")


@dataclass(frozen=True)
class UpkeepOptions:
    """Engine administration: sleep mode, weights from trainers, and profiling."""

    group: ClassVar[str] = "ModelConfig"

    enable_sleep_mode: bool = option(
        False, "Lets the engine release its memory while it sleeps (`/sleep?level=1` and 2 of the admin port)."
    )
    profiler_config: dict[str, Any] = option(
        {},
        "Settings of `/start_profile` of the admin port, as JSON. Keys: profiler (torch), torch_profiler_dir (folder "
        "for a trace of each rank, for Perfetto; without it, nothing is profiled; also set by "
        "VLLM_TORCH_PROFILER_DIR), max_iterations (steps after which profiling stops by itself; default 1000), "
        "delay_iterations (steps before it starts), torch_profiler_with_stack, torch_profiler_record_shapes, "
        "torch_profiler_with_memory (more detail, but slower), torch_profiler_use_gzip (default true).",
        schema=ProfilerConfig, variables=("VLLM_TORCH_PROFILER_DIR",),
    )  # fmt: skip

    weight_transfer_config: dict[str, Any] = option(
        {},
        "Lets a trainer send new weights to the engine, over a process group of torch.distributed "
        "(`/init_weight_transfer_engine` of the admin port), as JSON. Keys: backend (nccl, which stands for Gloo on a "
        "CPU), folder (where the machine keeps the weights that were received, such as /dev/shm; default: the one for "
        "temporary files).",
        schema=WeightTransferConfig,
    )  # fmt: skip

    def weight_transfer(self) -> WeightTransferConfig | None:
        """The parsed settings of weight transfer; None if no trainer may send weights."""
        given = self.weight_transfer_config
        return msgspec.convert(given, WeightTransferConfig) if given else None

    def profiler(self) -> ProfilerConfig:
        """The parsed profiler settings."""
        return msgspec.convert(self.profiler_config, ProfilerConfig)
