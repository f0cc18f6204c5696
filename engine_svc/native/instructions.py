"""The CPU instructions that programs may use here: those that the processor has and the system permits."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# ARM: the entries of the auxiliary vector, and what their bits mean (Linux's asm/hwcap.h).
_HWCAP = {16: {1: "asimd", 8: "atomics", 10: "asimdhp", 20: "asimddp"}, 26: {13: "i8mm", 14: "bf16"}}


@functools.cache
def instructions() -> frozenset[str]:
    """The usable instruction sets, named as in Linux's /proc/cpuinfo without underscores; empty on other systems."""
    if sys.platform != "linux":
        return frozenset()
    if platform.machine() == "aarch64":
        return frozenset(name for entry, names in _HWCAP.items() for name in _named(_auxiliary(entry), names))
    found = listed()
    return found if "amxtile" not in found or _may_use_tiles() else frozenset(n for n in found if n[:3] != "amx")


def listed() -> frozenset[str]:
    """The flags of the first processor in /proc/cpuinfo, without underscores, which systems write differently."""
    text = _CPUINFO.read_text(encoding="ascii", errors="replace") if _CPUINFO.exists() else ""
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").partition(":")[2].replace("_", "").split())


def _named(bits: int, names: dict[int, str]) -> list[str]:
    return [name for bit, name in names.items() if bits >> bit & 1]


def _auxiliary(entry: int) -> int:
    """An entry of the auxiliary vector, which the kernel, or an emulator, passes to a process at its start."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return int(getauxval(entry))


def _may_use_tiles() -> bool:
    """Requests permission to use AMX's tile registers, which Linux requires before their first use in a process."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    granted: int = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    return granted == 0
