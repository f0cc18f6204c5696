"""Where the logs of `quire serve` go."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.errors import StartupError
from quire.log import log_options, setup_logging
from quire.options.log import LogOptions
from quire.serve.log_file import LogFile, choose_log_file


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Restores the root logger afterwards."""
    root = logging.getLogger()
    handlers, level, records = root.handlers[:], root.level, logging.getLogRecordFactory()
    root.handlers = []
    yield
    logging.setLogRecordFactory(records)
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(level)


def test_by_default_it_is_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = choose_log_file(LogOptions(), "8000")
    assert file
    assert file.path == tmp_path / "quire" / "serve-8000.log"
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_the_terminal_can_be_asked_for() -> None:
    assert choose_log_file(LogOptions(log_file="-"), "8000") is None
    assert choose_log_file(LogOptions(log_level="debug"), "8000") is None


def test_a_named_file_must_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="--log-file"):
        choose_log_file(LogOptions(log_file=str(tmp_path / "file" / "log")), "8000")


def test_what_is_no_file_stays_where_it_is(tmp_path: Path) -> None:
    """Pipes, folders and links (as /dev/stderr may be) are not rotated or replaced."""
    file, folder, link, pipe = (tmp_path / name for name in ("file", "folder", "link", "pipe"))
    file.touch()
    link.symlink_to(file)
    LogFile(link, max_bytes=-1).rotate()
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)):  # a reader, without which opening would block
        LogFile(pipe)
    folder.mkdir()
    with pytest.raises(StartupError, match="Is a directory"):
        choose_log_file(LogOptions(log_file=str(folder)), "8000")
    assert sorted(tmp_path.iterdir()) == [file, folder, link, pipe]


def test_a_system_without_a_state_folder_logs_to_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert choose_log_file(LogOptions(), "8000") is None


def test_nothing_of_a_run_is_left_once_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "serve-1.log"
    path.write_text("an earlier run")
    LogFile(path).remove()
    assert [left.read_text() for left in tmp_path.iterdir()] == ["an earlier run"]
    file = LogFile(path, max_bytes=1)
    path.write_text("full")
    file.rotate()
    file.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("own_logging")
def test_lines_go_to_the_file_and_warnings_to_the_terminal_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = LogOptions(log_format="json", log_file=str(tmp_path / "log"))
    setup_logging("engine", options, "rank 1")
    logging.getLogger("quire").info("all is well")
    logging.getLogger("quire").warning("careful")
    lines = (tmp_path / "log").read_text().splitlines()
    assert ["all is well" in lines[0], "careful" in lines[1], '"engine rank 1"' in lines[1]] == [True] * 3
    assert "all is well" not in (terminal := capsys.readouterr().err)
    assert "careful" in terminal
    assert log_options() == options  # passed on to child processes


@pytest.mark.usefixtures("own_logging")
def test_a_full_file_is_kept_beside_a_new_one(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log", max_bytes=100)
    setup_logging("engine", LogOptions(log_file=str(file.path)))
    logging.getLogger("quire").info("x" * 100)
    file.rotate()
    logging.getLogger("quire").info("after")
    assert "xxx" in (tmp_path / "log.1").read_text()
    assert file.path.read_text().endswith("engine: after\n")
