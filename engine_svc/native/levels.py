"""The levels of instructions that the C++ kernels are compiled for, and which of them this processor has."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from engine_svc.native.instructions import instructions

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
_VNNI = (*_AVX512, "avx512vnni")
_BF16 = (*_VNNI, "avx512bf16")
_AMX = (*_BF16, "amx-tile", "amx-bf16", "amx-int8")
_NEON = ("asimd",)
_DOTPROD = (*_NEON, "atomics", "asimdhp", "asimddp")  # all of armv8.2-a that compilers may use
_MATRIX = (*_DOTPROD, "bf16", "i8mm")


@dataclass(frozen=True)
class Level:
    """What a processor must have to run the kernels that are compiled for it."""

    machine: str  # as platform.machine() says it
    compiler_flags: tuple[str, ...]
    instructions: frozenset[str]  # as `instructions` names them
    # What begins the names of macros for what it adds to the level before it; a source with no such name comes out as
    # at that level. "": compilers use what it adds in any source.
    macro: str = ""


def _x86(names: tuple[str, ...], macro: str = "") -> Level:
    needed = frozenset(name.replace("-", "") for name in names)
    return Level("x86_64", tuple(f"-m{name}" for name in names), needed, macro)


def _arm(architecture: str, names: tuple[str, ...]) -> Level:
    return Level("aarch64", (f"-march={architecture}",), frozenset(names))


# By the name that --cpu-kernels gives them; of those that a processor has, the last one is the fastest.
LEVELS = {
    "avx2": _x86(_AVX2), "avx512": _x86(_AVX512), "avx512_vnni": _x86(_VNNI, "__AVX512VNNI__"),
    "avx512_bf16": _x86(_BF16, "__AVX512BF16__"), "amx": _x86(_AMX, "__AMX_"),
    "neon": _arm("armv8-a", _NEON), "neon_dotprod": _arm("armv8.2-a+fp16+dotprod", _DOTPROD),
    "neon_bf16": _arm("armv8.2-a+fp16+dotprod+bf16+i8mm", _MATRIX),
}  # fmt: skip


def levels_of(machine: str) -> tuple[str, ...]:
    """Those of a kind of processor, as platform.machine() says it; the fastest last."""
    return tuple(name for name, level in LEVELS.items() if level.machine == machine)


def compiled_as(level: str, text: str) -> str:
    """The first level at which a source comes out as at `level`, by the text of it and its headers."""
    up_to = levels_of(LEVELS[level].machine)
    up_to = up_to[: up_to.index(level) + 1]
    return next(name for name in reversed(up_to) if LEVELS[name].macro in text)


def available_levels() -> tuple[str, ...]:
    """Those that this processor has, the fastest last."""
    present = instructions()
    return tuple(name for name in levels_of(platform.machine()) if LEVELS[name].instructions <= present)
