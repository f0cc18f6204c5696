"""How much memory this machine has left, and how much of what it may use this process has taken."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_PROCESS = Path("/proc/self")


def available_bytes(memory: Path = _MEMORY, group: Path = _GROUP) -> int:
    """Memory that a process can still allocate: the lower of what the machine has left and what the control group
    allows."""
    text = memory.read_text(encoding="ascii")
    available = next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable"))
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text(encoding="ascii").strip()) != "max":
        available = min(available, int(text) - int(used.read_text(encoding="ascii")))
    return max(0, available)


def used_share(process: Path = _PROCESS, group: Path = _GROUP) -> float:
    """This process's resident memory as a fraction of its control group's limit; 0 without a limit."""
    limit = min(_limits(process, group), default=0)
    if not limit:
        return 0.0
    pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / limit


def _limits(process: Path, group: Path) -> Iterator[int]:
    """Yields the limits, in bytes, of the process's control group and of those that contain it, as far as they are
    visible: a container sees its own as the outermost one. Version 1 has a folder of its own for memory."""
    groups = process / "cgroup"
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (group / "memory", "memory.limit_in_bytes") if controllers else (group, "memory.max")
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents[: len(folder.parts) - len(top.parts)]):
            with contextlib.suppress(OSError, ValueError):  # it is not visible, or its limit is `max`
                yield int((each / name).read_text(encoding="ascii"))
