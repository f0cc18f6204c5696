"""What this machine's processor is called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def processor_name(cpuinfo: Sequence[str] | None = None) -> str:
    """With the numbers that tell its generation, which the names that hypervisors show do not.

    Args:
        cpuinfo: lines of /proc/cpuinfo, which is read without.
    """
    if cpuinfo is None:
        cpuinfo = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in cpuinfo if line)}
    name = fields.get("model name") or f"ARM implementer {fields.get('CPU implementer')} part {fields.get('CPU part')}"
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return re.sub(r"\((R|TM|r|tm)\)", "", name) + (f" ({', '.join(numbers)})" if numbers else "")
