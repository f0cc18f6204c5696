"""How the progress of loading weights is reported."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from engine_svc.loader import progress
from engine_svc.loader.progress import LoadingProgress
from quire.supervised import Report, Stage, supervised_environment


def test_a_supervisor_hears_each_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s")
    for name, value in supervised_environment("engine", path).items():
        monkeypatch.setenv(name, value)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(path)
        LoadingProgress(told=False).update(0.9)  # another rank, which reports nothing
        loading = LoadingProgress(told=True)
        for fraction in (0.001, 0.25, 0.251, 1.0):
            loading.update(fraction)
        loading.close()
        reports.setblocking(False)
        told = [Report.decode(reports.recv(1000)) for _ in range(3)]
        assert told == [Report("engine", Stage.LOADING, fraction) for fraction in (0.0, 0.25, 1.0)]
        with pytest.raises(BlockingIOError):
            reports.recv(1000)


def test_a_worker_of_its_own_logs_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    loading = LoadingProgress(told=True)
    loading.update(0.4)
    assert caplog.messages == ["loading weights: 40 %"]
    monkeypatch.setattr(progress, "_LINE_SECONDS", 1000.0)
    loading = LoadingProgress(told=True)
    loading.update(0.5)
    assert len(caplog.messages) == 1
