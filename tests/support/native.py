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
# In QEMU (tests/support/arm.py), where a product takes a hundred times as long: what goes through every number of rows
# goes through those at the edges of the kernels' tiles and tasks there.
EMULATED = "QEMU_CPU" in os.environ
needs_native = pytest.mark.skipif(not AVAILABLE, reason="native kernels: no level of instructions, or no compiler")
# `level` is each one of this kind of machine; those of faster processors are skipped, except in QEMU, which has one.
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
