"""Cleanup of folders whose stack was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from quire.serve.held_folder import held_folder

HOLDER = """
import sys
from quire.serve.held_folder import held_folder
with held_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_goes_with_its_stack_and_what_a_killed_one_left_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "quire-gateways-link").symlink_to(tmp_path)
    (tmp_path / "quire-other").mkdir()
    others = {tmp_path / "quire-gateways-link", tmp_path / "quire-other"}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        (left / "metrics").touch()
        with held_folder() as folder:
            assert set(tmp_path.iterdir()) == {left, Path(folder)} | others
        process.send_signal(signal.SIGKILL)
    assert set(tmp_path.iterdir()) == {left} | others
    with held_folder() as folder:
        assert set(tmp_path.iterdir()) == {Path(folder)} | others
    assert set(tmp_path.iterdir()) == others
