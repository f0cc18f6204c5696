"""How much memory this machine has left."""

from __future__ import annotations

from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available_bytes(memory: Path = _MEMORY, group: Path = _GROUP) -> int:
    """Memory that a process can still allocate: the lower of what the machine has left and what the control group
    allows."""
    text = memory.read_text(encoding="ascii")
    available = next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable"))
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text(encoding="ascii").strip()) != "max":
        available = min(available, int(text) - int(used.read_text(encoding="ascii")))
    return max(0, available)
