"""What `quire serve` displays, with and without a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import re

import pytest

from quire.serve.console import Console
from quire.supervised import Report, Stage

ENGINE = Report("engine", Stage.STARTING)
GATEWAY = Report("gateway", Stage.WAITING, message="the engine looks at the model first")


def screen(written: str) -> list[str]:
    """What a terminal shows after this output."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+A\x1b\[J|\n)", written):
        if match := re.fullmatch(r"\x1b\[(\d+)A\x1b\[J", part):
            del lines[len(lines) - 1 - int(match[1]) :]
            lines.append("")
        elif part == "\n":
            lines.append("")
        else:
            lines[-1] += part
    return lines[:-1]


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def test_a_terminal_has_a_line_for_each_service(output: io.StringIO) -> None:
    console = Console(output, [ENGINE, GATEWAY], live=True)
    console.report(Report("engine", Stage.LOADING, 0.5))
    console.write("12:00:00 W engine: careful\n")
    first, engine, gateway = screen(output.getvalue())
    assert first == "12:00:00 W engine: careful"
    assert re.fullmatch(r"  engine   █{12}░{12} loading weights 50%  \d s", engine)
    assert gateway == "  gateway  waiting: the engine looks at the model first"
    console.report(Report("engine", Stage.READY))
    assert re.fullmatch(r"  engine   ready after \d+\.\d s", screen(output.getvalue())[1])


def test_a_closed_console_leaves_only_what_was_written(output: io.StringIO) -> None:
    console = Console(output, [ENGINE, GATEWAY], live=True)
    console.write("one\n")
    console.close()
    console.report(Report("engine", Stage.READY))
    console.write("two\n")
    assert screen(output.getvalue()) == ["one", "two"]


def test_a_terminal_that_was_closed_is_done_without() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w", encoding="utf-8") as closed:
        console = Console(closed, [ENGINE], live=True)
        console.write("nobody reads this\n")
        console.close()


def test_long_lines_do_not_wrap(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    console = Console(output, [GATEWAY], live=True)
    console.refresh()
    assert [len(line) for line in screen(output.getvalue())] == [19]


def test_without_a_terminal_each_event_is_a_line(output: io.StringIO) -> None:
    console = Console(output, [ENGINE, GATEWAY], live=False)
    for report in (
        ENGINE,
        Report("engine", Stage.LOADING),
        Report("engine", Stage.LOADING, 0.5),  # too soon for another line
        Report("gateway", Stage.WAITING, message="the router cannot be reached"),  # as is to be expected
        Report("engine", Stage.READY),
        Report("engine", Stage.FAILED, message="told at the end"),
    ):
        console.report(report)
    lines = output.getvalue().splitlines()
    assert lines[0] == "engine: loading weights"
    assert lines[1].startswith("engine: ready after ")
    assert len(lines) == 2
    assert "\x1b" not in output.getvalue()
