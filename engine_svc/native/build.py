"""Compiles the C++ kernels, once per instruction set level and version of their sources.

`python -m engine_svc.native.build` compiles them in advance, into the package and for all levels of this machine's
architecture, so that no compiler is needed later. Otherwise a worker builds the level it needs when it first starts
(half a minute) and keeps it in $XDG_CACHE_HOME/quire. Sources are compiled in parallel. After a change, only affected
sources are compiled again, and a source that is the same at several levels is compiled once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine_svc.file_lock import locked
from engine_svc.native.levels import LEVELS, compiled_as, levels_of
from quire.cache_folder import cache_folder
from quire.supervised import Stage, report

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_COMPILE = ("-O3", "-std=c++17", "-fPIC", "-pthread")
_LINK = ("-shared", "-pthread")
_EXPORTS = _FOLDER / "exports.map"
# Meant to end hanging compilers, not slow ones: attention.cpp takes 8 s of CPU time on a Zen 4, and a slower machine
# that compiles several levels at once takes many times that in wall time. Waiting for a lock has the same limit as
# compiling under it, because compiling the same source twice at once would slow down both.
_SECONDS = 1200.0
_VERSIONS = 8  # how many versions of a file the cache keeps: checkouts of several branches share it
_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


class NativeUnavailable(Exception):
    """The kernels cannot be built here; the message says why."""


def library(level: str) -> Path:
    """The library of kernels for a level; compiles it if it does not exist yet.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    if found := find(level):
        return found
    cache = cache_folder()
    with _failures_told(), locked(cache / f"{level}.lock", _SECONDS):
        if not find(level):  # otherwise, the previous holder of the lock has built it
            build((level,), cache)
            _forget(cache, f"quire-{level}-*")
    return cache / file_name(level)


def find(level: str) -> Path | None:
    """The library of kernels for a level; None if it does not exist yet."""
    name = file_name(level)
    if (packaged := _FOLDER / name).exists():
        return packaged
    return cached if _note_use(cached := cache_folder() / name) else None


def build(levels: Iterable[str], folder: Path) -> None:
    """Compiles the sources to a shared library in `folder` for each level.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    levels = tuple(levels)
    logger.info("compiling the CPU kernels for %s (only done once)", ", ".join(levels))
    with _failures_told(), ThreadPoolExecutor(os.cpu_count()) as pool:
        compiler = _Compiler()
        sources = [(level, source) for level in levels for source in sorted(_FOLDER.glob("*.cpp"))]
        objects: dict[str, list[Path]] = {level: [] for level in levels}
        compiled = pool.map(lambda each: compiler.compile(*each), sources)
        for count, ((level, _), target) in enumerate(zip(sources, compiled, strict=True)):
            report(Stage.COMPILING, count / len(sources))
            objects[level].append(target)
        for level in levels:
            exports = f"-Wl,--version-script={_EXPORTS}"
            compiler.run([*_LINK, exports, *map(str, objects[level])], folder / file_name(level))


class _Compiler:
    """The machine's C++ compiler, with a cache of object files."""

    def __init__(self) -> None:
        """
        Raises:
            NativeUnavailable: there is no compiler.
        """
        named = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if named is None:
            raise NativeUnavailable("there is no C++ compiler (g++ or clang++)")
        self._command = shlex.split(named)
        # The compiler's target and version.
        told = subprocess.run([*self._command, "-v"], check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
        self._identity = told.stderr

    def compile(self, level: str, source: Path) -> Path:
        """The object file of a source for a level, from the cache if it is there."""
        files = _with_headers(source)
        level = compiled_as(level, "".join(file.read_text(encoding="utf-8") for file in files))
        flags = (*_COMPILE, *LEVELS[level].compiler_flags)
        family = f"{source.stem}-{level}-"
        target = cache_folder() / "objects" / f"{family}{_digest((self._identity, *flags), files)}.o"
        with locked(target.parent / f"{source.stem}-{level}.lock", _SECONDS):  # another level's build may need it too
            if not _note_use(target):
                self.run(["-c", *flags, str(source)], target)
                _forget(target.parent, f"{family}*")
        return target

    def run(self, arguments: list[str], target: Path) -> None:
        """Runs the compiler; the target appears atomically."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.stem}-{uuid.uuid4().hex}")
        command = [*self._command, *arguments, "-o", str(temporary)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    try:
        yield
    except subprocess.CalledProcessError as error:
        raise NativeUnavailable(f"{error.cmd[0]} failed: {error.stderr[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"compiling them failed: {error}") from error


def file_name(level: str) -> str:
    """The file name of the library compiled from the current sources for a level."""
    files = sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"), _EXPORTS))
    return f"quire-{level}-{_digest((*_COMPILE, *_LINK, *LEVELS[level].compiler_flags), files)}.so"


def _digest(words: Iterable[str], files: Iterable[Path]) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for file in files:
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _with_headers(source: Path) -> tuple[Path, ...]:
    """A source and all of our headers that it includes, directly or indirectly."""
    found, new = [source], [source]
    while new:
        names = _INCLUDE.findall(new.pop().read_text(encoding="utf-8"))
        new += [file for name in names if (file := source.parent / name) not in found]
        found += [file for file in new if file not in found]
    return tuple(found)


def _note_use(file: Path) -> bool:
    """Marks a file as the most recently used of its versions; returns whether it exists."""
    with contextlib.suppress(PermissionError):
        if file.exists():
            file.touch()
    return file.exists()


def _forget(folder: Path, pattern: str) -> None:
    """Removes all but the most recently used files."""
    with contextlib.suppress(OSError):  # another process does the same
        for file in sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)[:-_VERSIONS]:
            file.unlink()


if __name__ == "__main__":
    build(levels_of(platform.machine()), _FOLDER)
