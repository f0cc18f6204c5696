"""Tests of the C++ kernels run on each level of instructions that the processor has, where there is a compiler."""

from __future__ import annotations

import os
import platform
import shutil

import pytest

from engine_svc.native.build import find
from engine_svc.native.levels import LEVELS, available_levels
from engine_svc.native.library import Kernels, kernels

_compiler = shutil.which("g++") or shutil.which("clang++")
AVAILABLE = tuple(level for level in available_levels() if _compiler or find(level))
# In QEMU (tests/support/arm.py), where a product takes a hundred times as long, tests that would try every number of
# rows try only those at the edges of the kernels' tiles and tasks.
EMULATED = "QEMU_CPU" in os.environ
needs_native = pytest.mark.skipif(not AVAILABLE, reason="native kernels: no level of instructions, or no compiler")
# `level` takes each level of this kind of machine. Those that the processor lacks are skipped; in QEMU, left out.
every_level = pytest.mark.parametrize(
    "level",
    [
        pytest.param(name, marks=() if name in AVAILABLE else pytest.mark.skip(f"this processor lacks {name}"))
        for name, level in LEVELS.items()
        if level.machine == platform.machine() and (name in AVAILABLE or not EMULATED)
    ],
)


def fastest_kernels() -> Kernels:
    return kernels(AVAILABLE[-1])
