"""The instruction set levels that the C++ kernels are compiled for, and which of them this processor supports."""

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
_DOTPROD = (*_NEON, "atomics", "asimdhp", "asimddp")  # all features of armv8.2-a that compilers may use
_MATRIX = (*_DOTPROD, "bf16", "i8mm")


@dataclass(frozen=True)
class Level:
    """An instruction set level: what a processor must have to run the kernels compiled for it."""

    machine: str  # as returned by platform.machine()
    compiler_flags: tuple[str, ...]
    instructions: frozenset[str]  # as named by `instructions`
    # Prefix of the predefined macros for what this level adds to the previous one. A source without it compiles to the
    # same code as at the previous level. "" means the compiler may use the additions in any source.
    macro: str = ""


def _x86(names: tuple[str, ...], macro: str = "") -> Level:
    needed = frozenset(name.replace("-", "") for name in names)
    return Level("x86_64", tuple(f"-m{name}" for name in names), needed, macro)


def _arm(architecture: str, names: tuple[str, ...]) -> Level:
    return Level("aarch64", (f"-march={architecture}",), frozenset(names))


# By their names in --cpu-kernels; of the levels that a processor has, the last one is the fastest.
LEVELS = {
    "avx2": _x86(_AVX2), "avx512": _x86(_AVX512), "avx512_vnni": _x86(_VNNI, "__AVX512VNNI__"),
    "avx512_bf16": _x86(_BF16, "__AVX512BF16__"), "amx": _x86(_AMX, "__AMX_"),
    "neon": _arm("armv8-a", _NEON), "neon_dotprod": _arm("armv8.2-a+fp16+dotprod", _DOTPROD),
    "neon_bf16": _arm("armv8.2-a+fp16+dotprod+bf16+i8mm", _MATRIX),
}  # fmt: skip


def levels_of(machine: str) -> tuple[str, ...]:
    """The levels of an architecture, as returned by platform.machine(); the fastest last."""
    return tuple(name for name, level in LEVELS.items() if level.machine == machine)


def compiled_as(level: str, text: str) -> str:
    """The first level at which a source compiles to the same code as at `level`.

    Args:
        text: of the source and its headers.
    """
    up_to = levels_of(LEVELS[level].machine)
    up_to = up_to[: up_to.index(level) + 1]
    return next(name for name in reversed(up_to) if LEVELS[name].macro in text)


def available_levels() -> tuple[str, ...]:
    """The levels that this processor has, the fastest last."""
    present = instructions()
    return tuple(name for name in levels_of(platform.machine()) if LEVELS[name].instructions <= present)
