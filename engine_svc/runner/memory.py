"""How much memory there is for the KV cache."""

from __future__ import annotations

from pathlib import Path

import torch

from quire.errors import StartupError
from quire.options.engine import EngineOptions

_CPU_SHARE = 0.1
_CPU_MOST = 4 * 2**30


def kv_cache_bytes(options: EngineOptions, device: torch.device) -> int:
    """Bytes for the KV cache of one rank, once weights are loaded and a largest step has run.

    Raises:
        StartupError: nothing is left.
    """
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    if device.type == "cpu":
        return min(_CPU_MOST, int(_CPU_SHARE * free_host_bytes()))
    free, total = torch.cuda.mem_get_info(device)
    # What torch keeps for reuse is ours; its peak is what a largest step needs besides the cache.
    ours = torch.cuda.max_memory_reserved(device)
    others = total - free - torch.cuda.memory_reserved(device)
    available = int(total * options.gpu_memory_utilization) - ours - others
    if available <= 0:
        raise StartupError(
            f"No GPU memory is left for the KV cache: weights and activations take {ours / 2**30:.1f} GiB of the "
            f"{total * options.gpu_memory_utilization / 2**30:.1f} GiB allowed. Raise --gpu-memory-utilization, or "
            "lower --max-num-batched-tokens."
        )
    return available


def token_budget(device: torch.device) -> int:
    """Tokens of a step, where the user leaves it open.

    The fewest at which the products run at full rate: more would only let the prompts of a burst wait for each other.
    """
    if device.type == "cpu":
        return 256
    return 8192 if torch.cuda.get_device_properties(device).total_memory >= 64 * 2**30 else 2048


def free_host_bytes() -> int:
    """Memory that this process can still take: what the machine has, and what its control group allows."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    available = next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, int(text) - int(used.read_text()))
    return max(0, available)
