"""The machine that a benchmark ran on: each prints `heading()` above its tables."""

from __future__ import annotations

import datetime
import os

from engine_svc.native.levels import available_levels
from quire.processor_name import processor_name


def heading(level: str = "auto") -> str:
    """Date, processor and level of the CPU kernels, as a line of Markdown.

    Args:
        level: the value of --cpu-kernels.
    """
    load = os.getloadavg()[0]
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores of {processor_name()}, CPU kernels "
        f"{chosen_level(level)}; load average before {load:.1f}.\n"
    )


def chosen_level(level: str) -> str:
    """The kernel level that `auto` stands for on this machine; any other value is returned as it is."""
    return (available_levels() or ("torch",))[-1] if level == "auto" else level


if __name__ == "__main__":
    print(heading())
