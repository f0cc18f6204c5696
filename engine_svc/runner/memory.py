"""How much memory there is for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.errors import StartupError
from quire.host_memory import available_bytes
from quire.options.cache import CacheOptions

_CPU_SHARE = 0.1
_CPU_MOST = 4 * 2**30
_CPU_STATES_SHARE = 0.5  # of the free memory, at most: what of it is touched are the slots that sequences have had
# Of a GPU's memory: left where others leave no more, for what the driver keeps of CUDA graphs, and libraries.
_SPARE = 1 / 64


def kv_cache_bytes(options: CacheOptions, device: torch.device, state_bytes: int = 0, later_bytes: int = 0) -> int:
    """Bytes for the KV cache of one rank and for states, once weights are loaded and a largest step has run.

    Args:
        state_bytes: of recurrent layers. A CPU's default is for them and the KV cache beside them.
        later_bytes: that graphs and steps with long contexts take on a GPU, beside what was taken so far.

    Raises:
        StartupError: nothing is left.
    """
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    if device.type == "cpu":
        free = available_bytes()
        return min(_CPU_MOST, int(_CPU_SHARE * free)) + min(state_bytes, int(_CPU_STATES_SHARE * free))
    free, total = torch.cuda.mem_get_info(device)
    # What torch keeps for reuse is ours; its peak is what a largest step needs besides the cache.
    held, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
    return gpu_budget(GpuMemory(total, free, held, peak + later_bytes), options.gpu_memory_utilization)


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU."""

    total: int
    free: int
    held: int  # by this process
    peak: int  # what it needs at most, without a cache

    @property
    def others(self) -> int:
        """Held by other processes, and by the driver for this one."""
        return self.total - self.free - self.held


def gpu_budget(memory: GpuMemory, utilization: float) -> int:
    """Bytes for the KV cache: this process's share of the GPU, whatever others hold, and never more than is free.

    Raises:
        StartupError: nothing is left; says who holds what.
    """
    own = int(memory.total * utilization) - memory.peak
    room = memory.free - (memory.peak - memory.held) - int(memory.total * _SPARE)
    if min(own, room) > 0:
        return min(own, room)
    allowed, total = _gib(memory.total * utilization), _gib(memory.total)
    fix = "raise --gpu-memory-utilization" if own <= room else "end what else runs on this GPU"
    raise StartupError(
        f"No GPU memory is left for the KV cache: --gpu-memory-utilization allows this process {allowed} of {total}, "
        f"its weights and activations need {_gib(memory.peak)}, other processes and the driver hold "
        f"{_gib(memory.others)}, and {_gib(memory.free)} are free. Lower --max-num-batched-tokens, or {fix}."
    )


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def token_budget(device: torch.device) -> int:
    """Tokens of a step, where the user leaves it open.

    The fewest at which the products run at full rate: more would only let the prompts of a burst wait for each other.
    """
    if device.type == "cpu":
        return 256
    return 8192 if torch.cuda.get_device_properties(device).total_memory >= 64 * 2**30 else 2048
