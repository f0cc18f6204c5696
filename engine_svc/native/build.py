"""Compiles the C++ kernels, once per level of instructions and version of their sources.

`python -m engine_svc.native.build` does it beforehand, into the package and for all levels of this machine's kind, so
that no compiler is needed. Elsewhere a worker builds what it needs when it first starts (half a minute) and keeps
it in $XDG_CACHE_HOME/quire. Sources are compiled side by side, of a changed tree only those that the change reaches,
and once for levels at which they come out alike.
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
from quire.supervised import Stage, report

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_COMPILE = ("-O3", "-std=c++17", "-fPIC", "-pthread")
_LINK = ("-shared", "-pthread")
_EXPORTS = _FOLDER / "exports.map"
# Ends what hangs, not what is slow: attention.cpp takes 8 s of CPU time on a Zen 4, and a slower machine that compiles
# for several at once many times that by the clock. Whoever waits for a lock waits for as long as what is compiled under
# it may take: to compile it beside would make both slower.
_SECONDS = 1200.0
_VERSIONS = 8  # of a file that the cache keeps: checkouts of several branches share it
_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


class NativeUnavailable(Exception):
    """The kernels cannot be built here; the text says why."""


def library(level: str) -> Path:
    """The kernels compiled for a level; compiles them where they are not there yet.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    if found := find(level):
        return found
    cache = _cache()
    with _failures_told(), locked(cache / f"{level}.lock", _SECONDS):
        if not find(level):  # else another process had the lock, and has done it
            build((level,), cache)
            _forget(cache, f"quire-{level}-*")
    return cache / file_name(level)


def find(level: str) -> Path | None:
    """The kernels compiled for a level, where they are there."""
    name = file_name(level)
    if (packaged := _FOLDER / name).exists():
        return packaged
    return cached if _note_use(cached := _cache() / name) else None


def build(levels: Iterable[str], folder: Path) -> None:
    """Compiles the sources to a shared library in `folder` for each level.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    levels = tuple(levels)
    logger.info("compiling the CPU kernels for %s, which is done once", ", ".join(levels))
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
    """The machine's; what it makes of a source is kept in the cache."""

    def __init__(self) -> None:
        """
        Raises:
            NativeUnavailable: there is none.
        """
        named = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if named is None:
            raise NativeUnavailable("there is no C++ compiler (g++ or clang++)")
        self._command = shlex.split(named)
        # What it targets and which version it is.
        told = subprocess.run([*self._command, "-v"], check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
        self._identity = told.stderr

    def compile(self, level: str, source: Path) -> Path:
        """The object file of a source for a level, out of the cache where it is there."""
        files = _with_headers(source)
        level = compiled_as(level, "".join(file.read_text(encoding="utf-8") for file in files))
        flags = (*_COMPILE, *LEVELS[level].compiler_flags)
        family = f"{source.stem}-{level}-"
        target = _cache() / "objects" / f"{family}{_digest((self._identity, *flags), files)}.o"
        with locked(target.parent / f"{source.stem}-{level}.lock", _SECONDS):  # another level's build may be at it
            if not _note_use(target):
                self.run(["-c", *flags, str(source)], target)
                _forget(target.parent, f"{family}*")
        return target

    def run(self, arguments: list[str], target: Path) -> None:
        """Calls it, so that the target is there whole or not at all."""
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
        raise NativeUnavailable(f"building them failed: {error}") from error


def file_name(level: str) -> str:
    """Of the library that is compiled from the present sources for a level."""
    files = sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"), _EXPORTS))
    return f"quire-{level}-{_digest((*_COMPILE, *_LINK, *LEVELS[level].compiler_flags), files)}.so"


def _digest(words: Iterable[str], files: Iterable[Path]) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for file in files:
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _with_headers(source: Path) -> tuple[Path, ...]:
    """A source and all of our headers that it includes, also by way of others."""
    found, new = [source], [source]
    while new:
        names = _INCLUDE.findall(new.pop().read_text(encoding="utf-8"))
        new += [file for name in names if (file := source.parent / name) not in found]
        found += [file for file in new if file not in found]
    return tuple(found)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def _note_use(file: Path) -> bool:
    """Makes it the newest of its versions; false where it is not there."""
    with contextlib.suppress(PermissionError):
        if file.exists():
            file.touch()
    return file.exists()


def _forget(folder: Path, pattern: str) -> None:
    """Removes all but the files that were used last."""
    with contextlib.suppress(OSError):  # another process does the same
        for file in sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)[:-_VERSIONS]:
            file.unlink()


if __name__ == "__main__":
    build(levels_of(platform.machine()), _FOLDER)
