"""Files that are read again when they change, and the metric that says when that fails."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from quire.errors import StartupError
from quire.metrics import FilesCollector
from quire.watched_files import WatchedFiles


def test_a_file_that_cannot_be_read_is_told_until_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_text("good")
    loaded: list[str] = []

    def load() -> None:
        if (content := file.read_text()) == "bad":
            raise StartupError("it is bad.")
        loaded.append(content)

    def failed() -> str:
        lines = generate_latest(registry).decode().splitlines()
        (line,) = [line for line in lines if line.startswith('quire_failed_reloads{files="letters"}')]
        return line.split()[-1]

    registry = CollectorRegistry()
    registry.register(FilesCollector())
    files = WatchedFiles("letters", [str(file)], load)
    assert failed() == "0.0"
    file.write_text("bad")
    for _ in range(3):
        files.refresh()
    assert failed() == "1.0"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # once, not at each look
    file.write_text("better")
    files.refresh()
    assert failed() == "0.0"
    assert loaded == ["better"]
