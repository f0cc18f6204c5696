"""The format of a line of a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.batch.lines import read_input
from quire.errors import StartupError

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A"}}


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_lines_are_found_by_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, LINE, "", LINE | {"custom_id": "ü"}, LINE | {"custom_id": "c"})
    requests = read_input(path)
    assert len(requests) == 3
    assert [(index, line.custom_id) for index, line in requests.read([2, 1])] == [(2, "c"), (1, "ü")]
    assert json.loads(bytes(next(requests.read([0]))[1].body)) == {"prompt": "A"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ({"custom_id": "b", "url": "/v1/completions"}, "body"),
        (LINE | {"custom_id": "b", "method": "GET"}, "'GET'"),
        (LINE | {"custom_id": "b", "url": "http://elsewhere/v1"}, "'http://elsewhere/v1'"),
        (LINE | {"custom_id": "b", "body": {"stream": True}}, "stream"),
        (LINE | {"custom_id": "b", "body": [1]}, "line 2"),
        (LINE | {"custom_id": ""}, "custom_id"),
        (LINE, "is also used in line 1"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: dict[str, Any] | str, named: str) -> None:
    with pytest.raises(StartupError, match=named):
        read_input(written(tmp_path, LINE, line))


def test_no_requests_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no requests"):
        read_input(written(tmp_path, ""))
    with pytest.raises(StartupError, match="No such file"):
        read_input(tmp_path / "missing")
