"""A logging configuration given by --log-config-file, and a log file on a full disk."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.errors import StartupError
from quire.log import log_options, setup_logging
from quire.options.log import LogOptions
from quire.rpc.context import enter_request

LOGGER = logging.getLogger("quire.something")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Restores the loggers afterwards."""
    root, records = logging.getLogger(), logging.getLogRecordFactory()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in {*root.handlers, *LOGGER.handlers} - {*handlers}:
        handler.close()
    root.handlers, LOGGER.handlers = handlers, []
    root.setLevel(level)
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.propagate = True
    logging.setLogRecordFactory(records)
    enter_request("", ())


def config(place: Path, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "formatters": {
            "own": {"format": "%(service)s|%(request_id)s|%(message)s"},
            "quires": {"()": "quire.log.JsonFormatter"},
        },
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(place), "formatter": "own"}},
        **more,
    }


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
def test_it_says_where_and_how(tmp_path: Path, write: Any) -> None:
    file, place = tmp_path / ("config.json" if write is json.dumps else "config.yaml"), tmp_path / "log"
    file.write_text(write(config(place, root={"handlers": ["file"], "level": "DEBUG"})))
    options = LogOptions(log_config_file=str(file))
    setup_logging("engine", options, "rank 1")
    enter_request("abc", ())
    LOGGER.debug("hello %d", 1)
    assert place.read_text() == "engine rank 1|abc|hello 1\n"
    assert log_options() == options  # passed on to child processes


def test_what_it_leaves_open_is_as_ever(tmp_path: Path) -> None:
    """A file that configures one logger leaves all others, including our modules', as the other options set them."""
    place, terminal = tmp_path / "log", io.StringIO()
    (tmp_path / "config.json").write_text(
        json.dumps(config(place, loggers={LOGGER.name: {"handlers": ["file"], "level": "ERROR", "propagate": False}}))
    )
    setup_logging("router", LogOptions(log_config_file=str(tmp_path / "config.json")), terminal=terminal)
    LOGGER.warning("not this")
    LOGGER.error("this")
    logging.getLogger("quire.log").info("as ever")
    assert place.read_text() == "router||this\n"
    assert terminal.getvalue().endswith("I router: as ever\n")


def test_the_terminal_stays_the_supervisors(tmp_path: Path) -> None:
    handlers = {"terminal": {"class": "logging.StreamHandler", "formatter": "quires"}}
    root = {"handlers": ["terminal"], "level": "INFO"}
    (tmp_path / "config.json").write_text(json.dumps(config(tmp_path / "log", handlers=handlers, root=root)))
    terminal = io.StringIO()
    setup_logging("serve", LogOptions(log_config_file=str(tmp_path / "config.json")), terminal=terminal)
    LOGGER.info("hello")
    assert json.loads(terminal.getvalue())["service"] == "serve"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: .*No such file"),
        ("{", "cannot be read: Expecting"),
        ("[1]", "must contain an object"),
        ("{}", "cannot be applied: dictionary doesn't specify a version"),
        ('{"version": 1, "root": {"handlers": ["none"]}}', "cannot be applied: .*none"),
        ('{"version": 1, "handlers": {"one": {"class": "no.such.Class"}}}', "cannot be applied: .*'one'.*no"),
        ('{"version": 1, "handlers": {"one": {"class": "logging.FileHandler", "filename": "/none/log"}}}',
         "cannot be applied: .*'one'.*/none/log"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartupError, match=f"--log-config-file {file} {said}"):
        setup_logging("gateway", LogOptions(log_config_file=str(file)))


def test_a_full_disk_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO()
    setup_logging("engine", LogOptions(log_file="/dev/full"), terminal=terminal)
    for number in range(3):
        LOGGER.info("line %d", number)
    LOGGER.warning("still here")
    lost, warning = terminal.getvalue().splitlines()
    assert lost == "Lines of the log are lost: /dev/full: No space left on device."
    assert "still here" in warning
    assert capsys.readouterr().err == ""
    with pytest.raises(OSError, match="No space left"):  # what the file still holds back
        logging.getLogger().handlers[-1].close()


def test_a_folder_that_is_gone_costs_lines_only(tmp_path: Path) -> None:
    """Whoever logs goes on, and so does the log once the folder is back."""
    terminal, folder = io.StringIO(), tmp_path / "logs"
    folder.mkdir()
    setup_logging("engine", LogOptions(log_file=str(folder / "log")), terminal=terminal)
    folder.rename(tmp_path / "moved")
    for number in range(3):
        LOGGER.info("line %d", number)
    assert terminal.getvalue() == f"Lines of the log are lost: {folder / 'log'}: No such file or directory.\n"
    folder.mkdir()
    LOGGER.info("again")
    assert "again" in (folder / "log").read_text()
