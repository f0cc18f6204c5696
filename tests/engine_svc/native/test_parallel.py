"""The kernels' thread pool: no piece of work is lost or done twice, whoever calls, forks, binds or resizes it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from engine_svc.native import build
from tests.support.native import needs_native

_SOURCES = (Path(__file__).with_name("pool.cpp"), Path(build.__file__).with_name("parallel.cpp"))


@needs_native
@pytest.mark.slow
def test_the_pool_stands_nested_concurrent_bound_resized_and_forked_use(tmp_path: Path) -> None:
    # With -fsanitize=thread instead of -O2, and the argument no-fork, it detects data races.
    compiler, program, headers = shutil.which("g++") or "clang++", tmp_path / "pool", _SOURCES[1].parent
    flags = ("-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{headers}", "-pthread")
    subprocess.run([compiler, *flags, *map(str, _SOURCES), "-o", str(program)], check=True, timeout=300)
    assert subprocess.run([program], timeout=300).returncode == 0
