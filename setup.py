"""What pyproject.toml cannot say: a wheel holds the CPU kernels, compiled for all levels of this machine's kind."""

import platform
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from engine_svc.native.build import NativeUnavailable, build
from engine_svc.native.levels import levels_of


class BuildWithKernels(build_py):
    """Adds the libraries to the package, but in a source checkout, where workers build what they need."""

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib, "engine_svc", "native")
        for old in folder.glob("*.so"):
            old.unlink()
        levels = levels_of(platform.machine()) if sys.platform == "linux" else ()
        if not self.editable_mode and levels:
            try:
                build(levels, folder)
            except NativeUnavailable as error:
                self.warn(f"the CPU kernels are not in the wheel: {error}; workers will compile them when they start")


class PlatformWheel(bdist_wheel):
    """For any Python 3 on this platform: the kernels know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithLibraries(Distribution):
    """Not the same on every platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel}, distclass=WithLibraries)
