"""Finds the name of this machine's processor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def processor_name(cpuinfo: Sequence[str] | None = None) -> str:
    """The processor's name with the numbers that identify its generation, which the names that hypervisors show do not.

    Args:
        cpuinfo: lines of /proc/cpuinfo; None reads that file.
    """
    if cpuinfo is None:
        cpuinfo = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in cpuinfo if line)}
    name = fields.get("model name") or f"ARM implementer {fields.get('CPU implementer')} part {fields.get('CPU part')}"
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return re.sub(r"\((R|TM|r|tm)\)", "", name) + (f" ({', '.join(numbers)})" if numbers else "")
