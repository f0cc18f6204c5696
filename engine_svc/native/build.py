"""Compiles the C++ kernels, once per version of their sources: `python -m engine_svc.native.build` does it beforehand.

A worker builds them when it first starts (a few seconds) and keeps them in $XDG_CACHE_HOME/quire. An image builds them
into the package, so that it needs no compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from quire.supervised import Stage, report

_FOLDER = Path(__file__).parent
_CPU_FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "fma")
_FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", *(f"-m{flag.replace('_', '')}" for flag in _CPU_FLAGS)
)  # fmt: skip
_SECONDS = 120.0


class NativeUnavailable(Exception):
    """The kernels cannot run or be built here; the text says why."""


def library() -> Path:
    """The compiled kernels; compiles them where they are not there yet.

    Raises:
        NativeUnavailable: the processor lacks the instructions, or there is no compiler, or it fails.
    """
    if missing := set(_CPU_FLAGS) - _cpu_flags():
        raise NativeUnavailable(f"this processor lacks {', '.join(sorted(missing))}")
    name = f"quire-{_digest()}.so"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"
    for folder in (_FOLDER, cache):
        if (folder / name).exists():
            return folder / name
    compile_to(cache / name)
    return cache / name


def compile_to(target: Path) -> None:
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
        command = [compiler, *_FLAGS, *map(str, sorted(_FOLDER.glob("*.cpp"))), "-o", str(temporary)]
        report(Stage.COMPILING)
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
        temporary.replace(target)
    except subprocess.CalledProcessError as error:
        raise NativeUnavailable(f"{compiler} failed: {error.stderr[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"building them failed: {error}") from error


def _digest() -> str:
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


if __name__ == "__main__":
    compile_to(_FOLDER / f"quire-{_digest()}.so")
