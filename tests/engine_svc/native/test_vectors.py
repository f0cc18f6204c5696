"""Each level's vectors against plain C++; ARM's are cross-compiled and emulated if the tools for that are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine_svc.native import build
from engine_svc.native.levels import LEVELS, levels_of
from tests.support.arm import COMPILER, EMULATOR, PROCESSORS, missing
from tests.support.native import every_level

_HEADERS = Path(build.__file__).parent
_PROGRAM = Path(__file__).with_name("vectors.cpp")
pytestmark = pytest.mark.slow


def check(level: str, folder: Path, compiler: Sequence[str], emulator: Sequence[str] = ()) -> None:
    flags = ("-O2", "-std=c++17", f"-I{_HEADERS}", *LEVELS[level].compiler_flags)
    subprocess.run([*compiler, *flags, _PROGRAM, "-o", folder / "vectors"], check=True, timeout=300)
    ran = subprocess.run([*emulator, folder / "vectors"], capture_output=True, text=True, timeout=300)
    assert (ran.stdout, ran.returncode) == ("", 0)


@every_level
def test_vectors(level: str, tmp_path: Path) -> None:
    check(level, tmp_path, [shutil.which("g++") or "clang++"])


@pytest.mark.skipif(bool(missing((COMPILER, EMULATOR))), reason=f"ARM: {missing((COMPILER, EMULATOR))}")
@pytest.mark.parametrize("level", levels_of("aarch64"))
def test_vectors_of_arm(level: str, tmp_path: Path) -> None:
    check(level, tmp_path, [COMPILER, "-static"], [EMULATOR, "-cpu", PROCESSORS[level]])


@pytest.mark.skipif(bool(missing((COMPILER,))), reason=f"ARM: {missing((COMPILER,))}")
@pytest.mark.parametrize("level", ["neon", "neon_bf16"])  # the latter covers the levels in between
def test_every_kernel_compiles_for_arm(level: str) -> None:
    for source in sorted(_HEADERS.glob("*.cpp")):
        command = [COMPILER, "-std=c++17", "-fsyntax-only", "-Werror", *LEVELS[level].compiler_flags, source]
        subprocess.run(command, check=True, timeout=300)
