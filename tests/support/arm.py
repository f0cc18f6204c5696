"""The kernels' tests on ARM, on a machine of another kind: `make test-arm`.

Each level is cross-compiled, and its tests are run by Debian's arm64 Python in QEMU, on an emulated processor that has
no higher level. Python and its packages come from Debian's archive and PyPI; nothing is installed on the machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
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
    "tests/conformance/test_attention.py", "tests/conformance/test_native_attention.py",
    "tests/conformance/test_ops.py", "tests/conformance/test_recurrence.py", "tests/engine_svc/native/test_*.py",
    "tests/engine_svc/quantization/test_int8.py", "tests/engine_svc/sampling/test_native.py",
)  # fmt: skip
OF_PROCESSES = ("test_build.py", "test_vectors.py", "test_wheel.py")
CHOSEN = ("-m", "not slow", "-k", "native or neon")
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
    """What has to be installed first; empty if nothing."""
    packages = [NEEDED[name] for name in names if not shutil.which(name)]
    return f"it needs Debian's {', '.join(packages)}" if packages else ""


@dataclass(frozen=True)
class ArmPython:
    """An arm64 Python with what the kernels' tests need, in a folder."""

    folder: Path

    def prepare(self) -> None:
        """Downloads it, where it is not there yet: 130 MB."""
        done = self.folder / "requirements.txt"
        if done.exists() and done.read_bytes() == REQUIREMENTS.read_bytes():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self._unpack_debian()
        self._install_packages()
        shutil.copy(REQUIREMENTS, done)

    def compile(self, level: str) -> None:
        """Into a cache of its own, so that its tests see this level alone."""
        script = f"from engine_svc.native.build import library; library({level!r})"
        own = {"CXX": COMPILER, "XDG_CACHE_HOME": str(self._cache(level)), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", script], env=os.environ | own, check=True)

    def run(self, level: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Calls the Python with these arguments, on a processor of this level."""
        environment = {
            "PATH": "", "PYTHONPATH": f"{self.folder / 'site'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(self._cache(level)), "HOME": str(self.folder), "OMP_NUM_THREADS": "1",
            "QEMU_CPU": PROCESSORS[level],
        }  # fmt: skip
        emulator = [str(shutil.which(EMULATOR)), "-L", str(self.folder / "root")]
        return subprocess.run(
            [*emulator, str(self._python()), *arguments],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

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
    """The files of TESTS that run kernels, and start no processes, which would be the machine's own."""
    files = {file for pattern in TESTS for file in ROOT.glob(pattern) if file.name not in OF_PROCESSES}
    return sorted(str(file.relative_to(ROOT)) for file in files if "tests.support" in file.read_text())


def main() -> int:
    """Runs the tests of the levels that arguments begin with, or of all, side by side; the rest is for pytest."""
    if reason := missing():
        print(f"make test-arm: {reason}")
        return 2
    arm = ArmPython(ROOT / ".cache" / "arm")
    arm.prepare()
    chosen = tuple(itertools.takewhile(lambda argument: argument in PROCESSORS, sys.argv[1:]))
    rest = sys.argv[1 + len(chosen) :]
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-q", *CHOSEN, *(rest or kernel_tests())]

    def test(level: str) -> int:
        arm.compile(level)
        ran = arm.run(level, command)
        print(f"== {level}\n{ran.stdout}", flush=True)
        return ran.returncode

    levels = chosen or levels_of("aarch64")
    with ThreadPoolExecutor(len(levels)) as pool:
        return max(pool.map(test, levels))


if __name__ == "__main__":
    sys.exit(main())
