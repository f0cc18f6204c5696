"""A wheel holds the CPU kernels of all levels, and runs them on systems without a compiler."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from engine_svc.native.build import build
from engine_svc.native.levels import levels_of
from tests.support.native import AVAILABLE

ROOT = Path(__file__).parents[3]
# Runs a kernel of every level and prints where each library was loaded from.
SCRIPT = """
import json, sys, torch
from engine_svc.native.build import library
from engine_svc.native.levels import available_levels
from engine_svc.native.library import kernels
from engine_svc.ops.native import NativeOps

hidden, weight = torch.randn(3, 100), torch.randn(40, 100)
for level in available_levels():
    found = NativeOps(kernels(level)).matrix(weight, None)(hidden)
    torch.testing.assert_close(found, hidden @ weight.T, atol=1e-4, rtol=1e-4)
print(json.dumps({level: str(library(level)) for level in available_levels()}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout; its objects come from the cache that all tests share."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("quire", "engine_svc"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source], check=True, timeout=1200
    )
    return next(folder.iterdir())


pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(1500),
    pytest.mark.skipif(not AVAILABLE, reason="native kernels: no level of instructions, or no compiler"),
]  # fmt: skip


@pytest.mark.parametrize("level", levels_of(platform.machine()))
def test_each_level_is_compiled(level: str, tmp_path: Path) -> None:
    """Comes first and fills the cache: a slow machine takes minutes for each, and no test may take all of them."""
    build((level,), tmp_path)
    assert [path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir()] == [f"quire-{level}"]


def test_it_is_of_one_platform_and_holds_every_level(wheel: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    names = [Path(name).name for name in zipfile.ZipFile(wheel).namelist()]
    libraries = sorted(name.rsplit("-", 1)[0] for name in names if name.endswith(".so"))
    assert libraries == sorted(f"quire-{level}" for level in levels_of(platform.machine()))


def test_it_runs_them_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    fresh, cache = tmp_path / "fresh", tmp_path / "cache"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True, timeout=300)
    python = fresh / "bin" / "python"
    install = ("--python", python, "install", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    subprocess.run([sys.executable, "-m", "pip", *install, wheel], check=True, timeout=300)
    installed = next(fresh.glob("lib/python*/site-packages"))
    (installed / "others.pth").write_text(sysconfig.get_path("purelib"))
    environment = {"PATH": str(fresh / "bin"), "XDG_CACHE_HOME": str(cache)}
    ran = subprocess.run(
        [python, "-c", SCRIPT], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    for level in AVAILABLE:
        assert f'"{level}": "{installed}/engine_svc/native/quire-{level}-' in ran.stdout
    assert not cache.exists()
