"""The machine that a benchmark ran on: each prints `heading()` above its tables."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from pathlib import Path

from engine_svc.native.levels import available_levels


def heading(level: str = "auto") -> str:
    """Date, processor and level of the CPU kernels, as a line of Markdown.

    Args:
        level: the value of --cpu-kernels.
    """
    load = os.getloadavg()[0]
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores of {processor()}, CPU kernels "
        f"{chosen_level(level)}; load average before {load:.1f}.\n"
    )


def chosen_level(level: str) -> str:
    """What `auto` stands for here; any other value is itself."""
    return (available_levels() or ("torch",))[-1] if level == "auto" else level


def processor(cpuinfo: Sequence[str] | None = None) -> str:
    """The processor's name with the numbers that tell its generation, which the names that hypervisors show do not.

    Args:
        cpuinfo: lines of /proc/cpuinfo, which is read without.
    """
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if cpuinfo is None else cpuinfo
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines if line)}
    name = fields.get("model name") or f"ARM implementer {fields.get('CPU implementer')} part {fields.get('CPU part')}"
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return re.sub(r"\((R|TM|r|tm)\)", "", name) + (f" ({', '.join(numbers)})" if numbers else "")


if __name__ == "__main__":
    print(heading())
