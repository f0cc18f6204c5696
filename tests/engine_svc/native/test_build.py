"""Kernels are compiled once, by one process, and recompiled only where a change affects them."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine_svc.file_lock import locked
from engine_svc.native import build
from engine_svc.native.build import NativeUnavailable, library
from tests.support.native import AVAILABLE

# Stands in for a compiler: writes its arguments to the file in its last one, which is the value of -o.
COMPILER = """#!/bin/sh
[ "$1" = -v ] && { echo gcc version 12 >&2; exit; }
echo "$@" >> {log}
for last; do :; done
echo "$@" > "$last"
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sources, headers, a compiler that logs its calls in `calls`, and an empty cache."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "one.cpp").write_text('#include "common.h"\n')
    (folder / "two.cpp").write_text("#include <cmath>\n")
    (folder / "common.h").write_text('#include "deep.h"\n')
    (folder / "deep.h").write_text("")
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.replace("{log}", str(tmp_path / "calls")))
    compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(build, "_FOLDER", folder)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def calls(sources: Path) -> list[str]:
    """Returns the names of sources compiled since the last call."""
    log = sources.parent / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(Path(line.split()[-3]).name for line in lines if "-c" in line.split())


def test_each_level_is_compiled_once(sources: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        first = library("avx2")
    assert first.parent == sources.parent / "cache" / "quire"
    assert caplog.messages == ["compiling the CPU kernels for avx2 (only done once)"]
    assert all("-mavx2" in each.read_text() for each in first.parent.glob("objects/*.o"))
    assert calls(sources) == ["one.cpp", "two.cpp"]
    assert library("avx2") == first
    assert calls(sources) == []
    assert library("avx512") != first
    assert calls(sources) == ["one.cpp", "two.cpp"]


def test_of_a_change_only_what_it_reaches_is_compiled(sources: Path) -> None:
    before = library("avx2")
    calls(sources)
    (sources / "deep.h").write_text("// changed")
    assert library("avx2") != before
    assert calls(sources) == ["one.cpp"]
    (sources / "deep.h").write_text("")
    assert library("avx2") == before
    assert calls(sources) == []


def test_a_source_is_compiled_once_for_levels_that_it_does_not_tell_apart(sources: Path) -> None:
    (sources / "deep.h").write_text("#if defined(__AVX512BF16__)")
    for level, compiled in [
        ("avx512", ["one.cpp", "two.cpp"]), ("avx512_vnni", []), ("avx512_bf16", ["one.cpp"]), ("amx", []),
        ("avx2", ["one.cpp", "two.cpp"]),
    ]:  # fmt: skip
        library(level)
        assert (level, calls(sources)) == (level, compiled)


def test_another_compiler_makes_objects_of_its_own(sources: Path) -> None:
    library("avx2").unlink()
    calls(sources)
    compiler = sources.parent / "compiler"
    compiler.write_text(compiler.read_text().replace("version 12", "version 13"))
    library("avx2")
    assert calls(sources) == ["one.cpp", "two.cpp"]


def test_the_cache_keeps_the_versions_that_were_used_last(sources: Path) -> None:
    first = library("avx2")
    for version in range(20):
        (sources / "one.cpp").write_text(f"// {version}")
        os.utime(first)
        library("avx2")
    cache = first.parent
    assert first.exists()
    assert len([*cache.glob("quire-*")]) == len([*cache.glob("objects/one-*.o")]) == 8
    assert len([*cache.glob("objects/two-*.o")]) == 1


def test_what_is_packaged_needs_no_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.build(["avx2"], sources)
    monkeypatch.setenv("CXX", "/nowhere")
    assert library("avx2") == sources / build.file_name("avx2")


def test_a_compiler_that_fails_leaves_nothing(sources: Path) -> None:
    with (sources.parent / "compiler").open("a") as compiler:
        compiler.write("echo no such thing >&2; exit 1")
    with pytest.raises(NativeUnavailable, match="compiler failed: no such thing"):
        library("avx2")
    assert [file for file in sources.parent.glob("cache/**/*") if file.is_file() and file.suffix != ".lock"] == []


def test_a_compiler_that_is_not_there_is_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(NativeUnavailable, match=r"compiling them failed: .*/nowhere/g"):
        library("avx2")


def test_without_a_compiler_the_error_says_so(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NativeUnavailable, match="no C\\+\\+ compiler"):
        library("avx2")


def test_of_processes_that_start_together_one_compiles(sources: Path) -> None:
    script = f"from engine_svc.native import build; from pathlib import Path; build._FOLDER = Path({str(sources)!r}); "
    script += "print(build.library('avx2').read_text())"
    processes = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert len(outputs) == 1
    assert "-shared" in outputs.pop()
    assert calls(sources) == ["one.cpp", "two.cpp"]


def test_a_lock_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    order: list[str] = []
    held = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock", 60):
            held.set()
            order.append("first")

    with locked(tmp_path / "lock", 60):
        waiting = threading.Thread(target=hold)
        waiting.start()
        assert not held.wait(0.3)
        with locked(tmp_path / "lock", 0.2):
            order.append("late")
    waiting.join(60)
    assert order == ["late", "first"]


@pytest.mark.skipif(not AVAILABLE or shutil.which("nm") is None, reason="needs compiled kernels, and nm")
def test_libraries_share_nothing() -> None:
    """Otherwise a process that loads two levels would share one variable of a template, of the first level's size."""
    names = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library(AVAILABLE[-1]))]
    found = [
        line.split()[0]
        for line in subprocess.run(names, check=True, capture_output=True, text=True).stdout.splitlines()
    ]
    assert found
    assert all(name.startswith("quire_") for name in found)
