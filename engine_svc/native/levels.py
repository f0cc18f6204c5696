"""The levels of instructions that the C++ kernels are compiled for, and which of them this processor has."""

from __future__ import annotations

import ctypes
import functools
import platform
from dataclasses import dataclass
from pathlib import Path

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
_VNNI = (*_AVX512, "avx512_vnni")
_BF16 = (*_VNNI, "avx512_bf16")
_AMX = (*_BF16, "amx_tile", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class Level:
    """What a processor must have to run the kernels that are compiled for it."""

    machine: str  # as platform.machine() says it
    compiler_flags: tuple[str, ...]
    instructions: frozenset[str]  # as /proc/cpuinfo names them


def _x86(instructions: tuple[str, ...]) -> Level:
    names = (name.replace("_", "-" if name.startswith("amx") else "") for name in instructions)
    return Level("x86_64", tuple(f"-m{name}" for name in names), frozenset(instructions))


# By the name that --cpu-kernels gives them; of those that a processor has, the last one is the fastest.
LEVELS = {
    "avx2": _x86(_AVX2), "avx512": _x86(_AVX512), "avx512_vnni": _x86(_VNNI), "avx512_bf16": _x86(_BF16),
    "amx": _x86(_AMX),
}  # fmt: skip


def available_levels() -> tuple[str, ...]:
    """Those that this processor has, the fastest last."""
    machine, instructions = platform.machine(), _instructions()
    return tuple(
        name
        for name, level in LEVELS.items()
        if level.machine == machine
        and level.instructions <= instructions
        and ("amx_tile" not in level.instructions or _may_use_tiles())
    )


@functools.cache
def _may_use_tiles() -> bool:
    """Asks Linux for AMX's matrix registers, which a process has to do before its first instruction with them."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    granted: int = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    return granted == 0


def _instructions() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    named = (line for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(named, "").partition(":")[2].split())
