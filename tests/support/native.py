"""Tests of the C++ kernels run on each level of instructions that the processor has, where there is a compiler."""

from __future__ import annotations

import platform
import shutil

import pytest

from engine_svc.native.build import find
from engine_svc.native.levels import LEVELS, available_levels
from engine_svc.native.library import Kernels, kernels

_compiler = shutil.which("g++") or shutil.which("clang++")
AVAILABLE = tuple(level for level in available_levels() if _compiler or find(level))
needs_native = pytest.mark.skipif(not AVAILABLE, reason="native kernels: no level of instructions, or no compiler")
# `level` is each one of this kind of machine; those of faster processors are skipped.
every_level = pytest.mark.parametrize(
    "level",
    [
        pytest.param(name, marks=() if name in AVAILABLE else pytest.mark.skip(f"this processor lacks {name}"))
        for name, level in LEVELS.items()
        if level.machine == platform.machine()
    ],
)


def fastest_kernels() -> Kernels:
    return kernels(AVAILABLE[-1])
