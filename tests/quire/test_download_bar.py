"""Progress reports of a download."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from quire.download_bar import DownloadBar
from quire.supervised import Report, Stage, supervised_environment


def test_a_supervisor_hears_each_percent_of_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s")
    for name, value in supervised_environment("engine", path).items():
        monkeypatch.setenv(name, value)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(path)
        files = DownloadBar(total=2, desc="Fetching 2 files")
        bar = DownloadBar(total=0, initial=0, unit="B", unit_scale=True)
        bar.update(1)  # the total is not known yet
        bar.total = 2000
        for size in (499, 1, 500):
            bar.update(size)
            files.update()
        reports.setblocking(False)
        told = [Report.decode(reports.recv(1000)) for _ in range(2)]
        assert told == [Report("engine", Stage.DOWNLOADING, fraction) for fraction in (0.25, 0.5)]
        with pytest.raises(BlockingIOError):
            reports.recv(1000)
