"""Answers that arrive in any order, and runs that are interrupted."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.batch.lines import BatchInput, BatchResponse, BatchResult, read_input
from quire.batch.results import Results
from quire.errors import StartupError


@pytest.fixture
def requests(tmp_path: Path) -> BatchInput:
    path = tmp_path / "in.jsonl"
    lines = ({"custom_id": f"r{number}", "url": "/v1/completions", "body": {}} for number in range(4))
    path.write_text("\n".join(map(json.dumps, lines)))
    return read_input(path)


def answer(number: int) -> BatchResult:
    return BatchResult(f"id{number}", f"r{number}", BatchResponse(200, "x", {"text": "\u2028 \n ü" * number}))


def test_they_are_written_in_the_order_of_the_requests(tmp_path: Path, requests: BatchInput) -> None:
    output = tmp_path / "out.jsonl"
    with Results(tmp_path / "partial", requests) as results:
        for number in (2, 0, 3, 1):
            results.add(number, answer(number))
        assert not results.missing
        results.write(output)
        results.remove()
    assert [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()] == ["r0", "r1", "r2", "r3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_run_goes_on_wherever_it_was_cut(tmp_path: Path, requests: BatchInput, cut: int) -> None:
    path, output = tmp_path / "partial", tmp_path / "out.jsonl"
    with Results(path, requests) as results:
        for number in (3, 1):
            results.add(number, answer(number))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with Results(path, requests) as results:
        assert 3 not in results.missing or cut > len(whole) // 2
        for number in results.missing:
            results.add(number, answer(number))
        results.write(output)
    assert [json.loads(line) for line in output.read_bytes().splitlines()] == [
        json.loads(json.dumps({"id": f"id{n}", "custom_id": f"r{n}", "response": {
            "status_code": 200, "request_id": "x", "body": {"text": "\u2028 \n ü" * n}}, "error": None}))
        for n in range(4)
    ]  # fmt: skip


def test_a_run_without_answers_leaves_nothing(tmp_path: Path, requests: BatchInput) -> None:
    with pytest.raises(StartupError, match="no model"), Results(tmp_path / "partial", requests):
        raise StartupError("There is no model.")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_answers_to_other_requests_are_left_alone(tmp_path: Path, requests: BatchInput) -> None:
    path = tmp_path / "partial"
    path.write_text('{"quire batch": 1, "input": "other"}\n0 {}\n')
    with pytest.raises(StartupError, match="requests other than"), Results(path, requests):
        pass
    assert path.read_text().endswith("0 {}\n")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in which files have 8 KiB at most."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def large_answer(number: int) -> BatchResult:
    return BatchResult("id", f"r{number}", BatchResponse(200, "x", {"text": "x" * 3000}))


def test_a_full_disk_ends_the_run_and_keeps_what_is_there(full_disk: Path, requests: BatchInput) -> None:
    path = full_disk / "partial"
    with Results(path, requests) as results:
        for number in range(2):
            results.add(number, large_answer(number))
        with pytest.raises(StartupError, match=r"partial cannot be written: .* run the same command again"):
            results.add(2, large_answer(2))
    with Results(path, requests) as results:
        assert results.missing == [2, 3]


def test_an_output_that_does_not_fit_leaves_no_half_of_it(full_disk: Path, requests: BatchInput) -> None:
    output = full_disk / "out.jsonl"
    with Results(full_disk / "partial", requests) as results:
        for number in range(4):
            results.add(number, answer(number))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with pytest.raises(StartupError, match=r"out\.jsonl cannot be written"):
            results.write(output)
    assert sorted(path.name for path in full_disk.iterdir()) == ["in.jsonl", "partial"]
