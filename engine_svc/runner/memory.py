"""How much memory is available for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.errors import StartupError
from quire.host_memory import available_bytes
from quire.options.cache import CacheOptions
from quire.options.scheduler import SchedulerOptions

_CPU_SHARE = 0.1
_CPU_MOST = 4 * 2**30
_CPU_STATES_SHARE = 0.5  # of free memory, at most; only the slots that sequences have used are ever touched
# Share of a GPU's memory that stays free even if little is left: for what the driver keeps for CUDA graphs, and for
# libraries.
_SPARE = 1 / 64


def kv_cache_bytes(options: CacheOptions, device: torch.device, state_bytes: int = 0, later_bytes: int = 0) -> int:
    """Bytes for one rank's KV cache and recurrent states, once weights are loaded and the largest step has run.

    Args:
        state_bytes: size of the states of recurrent layers. On a CPU, the default adds room for them to the KV cache's.
        later_bytes: what graphs and steps with long contexts will take on a GPU in addition to the memory taken so far.

    Raises:
        StartupError: no memory is left.
    """
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    if device.type == "cpu":
        free = available_bytes()
        return min(_CPU_MOST, int(_CPU_SHARE * free)) + min(state_bytes, int(_CPU_STATES_SHARE * free))
    free, total = torch.cuda.mem_get_info(device)
    # Memory that torch caches for reuse counts as held; its peak is what a step of the largest size needs besides the
    # KV cache.
    held, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
    return gpu_budget(GpuMemory(total, free, held, peak + later_bytes), options.gpu_memory_utilization)


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU."""

    total: int
    free: int
    held: int  # by this process
    peak: int  # the most that this process needs, without a KV cache

    @property
    def others(self) -> int:
        """Bytes held by other processes, and by the driver for this one."""
        return self.total - self.free - self.held


def gpu_budget(memory: GpuMemory, utilization: float) -> int:
    """Bytes for the KV cache: this process's share of the GPU, regardless of other processes, but only free memory.

    Raises:
        StartupError: no memory is left; the message says who holds how much.
    """
    own = int(memory.total * utilization) - memory.peak
    room = memory.free - (memory.peak - memory.held) - int(memory.total * _SPARE)
    if min(own, room) > 0:
        return min(own, room)
    allowed, total = _gib(memory.total * utilization), _gib(memory.total)
    fix = "raise --gpu-memory-utilization" if own <= room else "stop other processes on this GPU"
    raise StartupError(
        f"No GPU memory is left for the KV cache: --gpu-memory-utilization allows this process {allowed} of {total}, "
        f"its weights and activations need {_gib(memory.peak)}, other processes and the driver hold "
        f"{_gib(memory.others)}, and {_gib(memory.free)} are free. Lower --max-num-batched-tokens, or {fix}."
    )


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def token_budget(device: torch.device) -> int:
    """Default for the most tokens of a step.

    The smallest number at which matrix products run at full rate: more would only make the prompts of a burst wait for
    each other.
    """
    if device.type == "cpu":
        return 256
    return 8192 if torch.cuda.get_device_properties(device).total_memory >= 64 * 2**30 else 2048


def step_tokens(device: torch.device, options: SchedulerOptions, whole_image_tokens: int) -> int:
    """The most tokens of a step; by default, enough for a whole image beside all sequences that decode.

    Args:
        whole_image_tokens: see ModelFacts; 0 if there are no images.

    Raises:
        StartupError: the user wants fewer than an image has.
    """
    given = options.max_num_batched_tokens
    if given is None:
        return max(token_budget(device), whole_image_tokens + options.most_sequences if whole_image_tokens else 0)
    if given < whole_image_tokens:
        raise StartupError(
            f"--max-num-batched-tokens is {given}, but a step computes all of an image, which has {whole_image_tokens} "
            "tokens: raise it, or serve text only with --limit-mm-per-prompt image=0."
        )
    return given
