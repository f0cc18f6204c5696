"""Options for what operators may ask of a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from quire.options.base import option


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


@dataclass(frozen=True)
class UpkeepOptions:
    """What may be asked of a running engine, beside requests."""

    group: ClassVar[str] = "ModelConfig"

    enable_sleep_mode: bool = option(
        False, "Lets the engine give its memory back while it sleeps (`/sleep?level=1` and 2 of the admin port)."
    )
    profiler_config: dict[str, Any] = option(
        {},
        "Where and how `/start_profile` of the admin port has steps profiled, as JSON. Keys: profiler (torch), "
        "torch_profiler_dir (folder for a trace of each rank, for Perfetto; without it nothing is profiled; or "
        "VLLM_TORCH_PROFILER_DIR), max_iterations (steps after which it ends by itself, 1000 when left out), "
        "delay_iterations (steps before it begins), torch_profiler_with_stack, torch_profiler_record_shapes, "
        "torch_profiler_with_memory (more detail, and slower), torch_profiler_use_gzip (true when left out).",
        schema=ProfilerConfig, variables=("VLLM_TORCH_PROFILER_DIR",),
    )  # fmt: skip

    def profiler(self) -> ProfilerConfig:
        """The parsed profiler settings."""
        return msgspec.convert(self.profiler_config, ProfilerConfig)
