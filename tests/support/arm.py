"""Runs the kernels' tests for ARM on a machine of another kind: `make test-arm`.

Each level is cross-compiled, and its tests run with Debian's arm64 Python in QEMU, on an emulated processor that has no
higher level. The lowest level runs all tests, a higher one only those of code that differs: `CHOSEN`. Python and its
packages come from Debian's archive and PyPI; nothing is installed on the machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from engine_svc.native.levels import levels_of

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("arm_requirements.txt")
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
# Program and Debian package.
NEEDED = {COMPILER: "g++-aarch64-linux-gnu", EMULATOR: "qemu-user", "apt-get": "apt", "dpkg-deb": "dpkg"}
# The processors that QEMU emulates for the levels.
PROCESSORS = {
    "neon": "cortex-a53", "neon_dotprod": "cortex-a76",
    "neon_bf16": "max,sve=off,pauth-impdef=on",  # without what its libraries would use, and what takes long to emulate
}  # fmt: skip
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libgomp1")
TESTS = (
    "tests/conformance/test_attention.py", "tests/conformance/test_context_parallel.py",
    "tests/conformance/test_native_attention.py", "tests/conformance/test_ops.py",
    "tests/conformance/test_recurrence.py", "tests/engine_svc/native/test_*.py",
    "tests/engine_svc/quantization/test_int8.py", "tests/engine_svc/sampling/test_native.py",
)  # fmt: skip
OF_PROCESSES = ("test_build.py", "test_vectors.py", "test_wheel.py")
# Of TESTS, what levels run, by name: dot products are of int8, and the others of bfloat16, in which test_ops runs.
CHOSEN = {
    "neon": "native or neon", "neon_dotprod": "(native or neon) and int8",
    "neon_bf16": "(native or neon) and (bfloat16 or test_ops)",
}  # fmt: skip
APT = """
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Install-Recommends "false";
Dir::State "{folder}/apt";
Dir::State::status "{folder}/apt/status";
Dir::Cache "{folder}/apt/cache";
Debug::NoLocking "true";
"""


def missing(names: Sequence[str] = tuple(NEEDED)) -> str:
    """Says what has to be installed first; empty if nothing is missing."""
    packages = [NEEDED[name] for name in names if not shutil.which(name)]
    return f"it needs Debian's {', '.join(packages)}" if packages else ""


@dataclass(frozen=True)
class Ran:
    """A command's exit code, and the CPU seconds of it and its children."""

    code: int
    seconds: float


def measured(level: str, command: Sequence[str], environment: Mapping[str, str]) -> Ran:
    """Runs a command in the repository, and prints its output line by line, each prefixed with the level."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as started:
        for line in started.stdout or ():
            print(f"{level}: {line}", end="", flush=True)
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    return Ran(started.returncode, usage.ru_utime + usage.ru_stime)


@dataclass(frozen=True)
class ArmPython:
    """An arm64 Python with what the kernels' tests need, in a folder."""

    folder: Path

    def prepare(self) -> None:
        """Downloads it if necessary: 130 MB."""
        done = self.folder / "requirements.txt"
        if done.exists() and done.read_bytes() == REQUIREMENTS.read_bytes():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self._unpack_debian()
        self._install_packages()
        shutil.copy(REQUIREMENTS, done)

    def compile(self, level: str) -> Ran:
        """Compiles a level into a separate cache, so that its tests see only this level."""
        script = f"from engine_svc.native.build import library; library({level!r})"
        own = {"CXX": COMPILER, "XDG_CACHE_HOME": str(self._cache(level)), "PYTHONPATH": str(ROOT)}
        return measured(level, [sys.executable, "-c", script], os.environ | own)

    def report(self, level: str) -> Path:
        """The file with pytest's --junitxml report of a level's tests."""
        return self._cache(level) / "tests.xml"

    def run(self, level: str, arguments: Sequence[str]) -> Ran:
        """Calls the Python with these arguments, on a processor of this level."""
        environment = {
            "PATH": "", "PYTHONPATH": f"{self.folder / 'site'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(self._cache(level)), "HOME": str(self.folder), "OMP_NUM_THREADS": "1",
            "QEMU_CPU": PROCESSORS[level],
        }  # fmt: skip
        emulator = [str(shutil.which(EMULATOR)), "-L", str(self.folder / "root")]
        return measured(level, [*emulator, str(self._python()), *arguments], environment)

    def _cache(self, level: str) -> Path:
        return self.folder / level

    def _python(self) -> Path:
        return next((self.folder / "root" / "usr" / "bin").glob("python3.*[0-9]"))

    def _unpack_debian(self) -> None:
        archives = self.folder / "apt" / "cache" / "archives"
        for folder in (archives / "partial", self.folder / "apt" / "lists" / "partial"):
            folder.mkdir(parents=True)
        (self.folder / "apt" / "status").touch()
        configuration = self.folder / "apt.conf"
        configuration.write_text(APT.format(folder=self.folder))
        environment = os.environ | {"APT_CONFIG": str(configuration)}
        for command in (["update"], ["install", "--download-only", "--yes", *PACKAGES]):
            subprocess.run(["apt-get", "-qq", *command], env=environment, check=True)
        for archive in archives.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", archive, self.folder / "root"], check=True)

    def _install_packages(self) -> None:
        version = self._python().name.removeprefix("python")
        platforms = [f"--platform=manylinux_{glibc}_aarch64" for glibc in ("2_17", "2_27", "2_28")]
        subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--only-binary=:all:", *platforms, f"--python-version={version}", f"--target={self.folder / 'site'}",
                f"--requirement={REQUIREMENTS}",
            ],
            check=True,
        )  # fmt: skip


def kernel_tests() -> list[str]:
    """The files of TESTS that run kernels, and start no processes, which would not be emulated."""
    files = {file for pattern in TESTS for file in ROOT.glob(pattern) if file.name not in OF_PROCESSES}
    return sorted(str(file.relative_to(ROOT)) for file in files if "tests.support" in file.read_text())


def counted(report: Path) -> str:
    """Says how many tests of each file ran, according to a report."""
    cases = [case for case in ElementTree.parse(report).iter("testcase") if case.find("skipped") is None]
    files = Counter(case.get("classname", "").rpartition(".")[2] for case in cases)
    return f"{len(cases)} tests ran: {', '.join(f'{file} {count}' for file, count in sorted(files.items()))}"


def check(arm: ArmPython, level: str, arguments: Sequence[str]) -> tuple[bool, str]:
    """Compiles a level and runs its tests: whether they passed, and what ran."""
    compiled, report = arm.compile(level), arm.report(level)
    if compiled.code:
        return False, f"{level}: does not compile"
    report.unlink(missing_ok=True)
    options = ("-p", "no:cacheprovider", "-q", f"--junitxml={report}", "-m", "not slow", "-k", CHOSEN[level])
    ran = arm.run(level, ["-m", "pytest", *options, *arguments])
    ended = "passed" if ran.code == 0 else f"FAILED (exit code {ran.code})"
    took = f"{ran.seconds:.0f} CPU seconds, and {compiled.seconds:.0f} to compile"
    count = counted(report) if report.exists() else "no report"
    return ran.code == 0, f"{level} {ended}, {took}. Of -k '{CHOSEN[level]}' {count}"


def main() -> int:
    """Tests the levels named by the first arguments, or all levels, in parallel; passes other arguments to pytest."""
    if reason := missing():
        print(f"make test-arm: {reason}")
        return 2
    arm = ArmPython(ROOT / ".cache" / "arm")
    arm.prepare()
    chosen = tuple(itertools.takewhile(lambda argument: argument in PROCESSORS, sys.argv[1:]))
    arguments = sys.argv[1 + len(chosen) :] or kernel_tests()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda level: check(arm, level, arguments), chosen or levels_of("aarch64")))
    print(*(f"== {told}" for _, told in found), sep="\n")
    return 0 if all(passed for passed, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
