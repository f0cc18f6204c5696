"""Compiles the C++ kernels, once per level of instructions and version of their sources.

`python -m engine_svc.native.build` does it beforehand, into the package and for all levels of this machine's kind, so
that an image or a wheel needs no compiler. Elsewhere a worker builds what it needs when it first starts (some seconds)
and keeps it in $XDG_CACHE_HOME/quire.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from engine_svc.native.levels import LEVELS
from quire.supervised import Stage, report

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp")
_SECONDS = 300.0


class NativeUnavailable(Exception):
    """The kernels cannot be built here; the text says why."""


def library(level: str) -> Path:
    """The kernels compiled for a level; compiles them where they are not there yet.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    name = file_name(level)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"
    for folder in (_FOLDER, cache):
        if (folder / name).exists():
            return folder / name
    compile_to(cache / name, level)
    return cache / name


def compile_to(target: Path, level: str) -> None:
    """Compiles the sources to a shared library.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeUnavailable("there is no C++ compiler (g++ or clang++)")
    # Under a name of its own first: several workers may build at once.
    temporary = target.with_suffix(f".{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sources = map(str, sorted(_FOLDER.glob("*.cpp")))
        command = [compiler, *_FLAGS, *LEVELS[level].compiler_flags, *sources, "-o", str(temporary)]
        report(Stage.COMPILING)
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
        temporary.replace(target)
    except subprocess.CalledProcessError as error:
        raise NativeUnavailable(f"{compiler} failed: {error.stderr[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"building them failed: {error}") from error


def file_name(level: str) -> str:
    """Of the library that is compiled from the present sources for a level."""
    digest = hashlib.sha256(" ".join((*_FLAGS, *LEVELS[level].compiler_flags)).encode())
    for source in sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"))):
        digest.update(source.read_bytes())
    return f"quire-{level}-{digest.hexdigest()[:16]}.so"


if __name__ == "__main__":
    for name, level in LEVELS.items():
        if level.machine == platform.machine():
            compile_to(_FOLDER / file_name(name), name)
