"""The stages of `make check-gpu`, with commands that need no GPU in place of the real ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import MOST_SECONDS, Stage, report, run_stages, stages
from tests.support.waiting import eventually_now

CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def python(name: str, code: str, seconds: float = 60) -> Stage:
    return Stage(name, [sys.executable, "-c", code], seconds)


def test_each_stage_says_what_became_of_it() -> None:
    outcomes = [
        *run_stages(
            [
                python("table", "print('noise')\nprint('| a | b |')"),
                python("broken", "print('first')\nraise SystemExit(3)"),
                Stage("missing", ["/nowhere/nvidia-smi"], 10),
                python("after", "print('still run')"),
            ],
            100,
        )
    ]
    assert [outcome.result.partition(":")[0] for outcome in outcomes] == [
        "done", "failed with status 3", "cannot be started", "done",
    ]  # fmt: skip
    page = report(outcomes)
    assert "| broken | failed with status 3 |" in page
    assert "| a | b |" in page
    assert "noise" not in page
    assert "```\nfirst\n```" in page
    assert "```\nstill run\n```" in page


@pytest.mark.slow
def test_a_stage_ends_at_its_deadline_with_all_that_it_has_started() -> None:
    (late,) = run_stages([python("late", CHILD, 3)], 100)
    assert late.result == "not done after 3 s"
    (child,) = map(int, late.text.split())
    eventually_now(lambda: has_ended(child), "the child's end")


TABLE_THEN_WAIT = """
import sys, time
from benchmarks.stopping import unwinding
with unwinding():
    try:
        print("| 1 | 2 |")
        time.sleep(600)
    finally:
        print("unwound")
"""


@pytest.mark.slow
def test_a_late_stage_is_told_to_end_and_what_it_has_found_is_shown() -> None:
    (late,) = run_stages([python("late", TABLE_THEN_WAIT, 5)], 100)
    assert late.result == "not done after 5 s"
    assert report([late]).endswith("\n| 1 | 2 |\n\n```\n| 1 | 2 |\nunwound\n```\n")


def has_ended(pid: int) -> bool:
    """Returns whether the process has ended. A zombie counts: it remains until its new parent reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_no_stage_begins_when_no_time_is_left(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (outcome,) = run_stages([python("late", f"open({os.fspath(there)!r}, 'w')")], 0)
    assert outcome.result == "no time was left"
    assert not there.exists()


def test_the_page_is_written_and_failure_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "stages", lambda: [python("good", "print(1)"), python("bad", "raise SystemExit(1)")])
    page = tmp_path / "gpu.md"
    for only, status in ((["good"], 0), (["good", "bad"], 1)):
        monkeypatch.setattr(sys, "argv", ["gpu", "--output", os.fspath(page), "--only", *only])
        with pytest.raises(SystemExit) as exit_:
            gpu.main()
        assert exit_.value.code == status
        assert ("| bad |" in page.read_text()) == ("bad" in only)


def test_a_second_call_adds_its_stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "stages", lambda: [python("first", "print('| 1 |')"), python("second", "print('| 2 |')")])
    page = tmp_path / "gpu.md"
    for only in ("first", "second"):
        monkeypatch.setattr(sys, "argv", ["gpu", "--output", os.fspath(page), "--append", "--only", only])
        with pytest.raises(SystemExit):
            gpu.main()
    text = page.read_text()
    assert text.count("# On a GPU") == 1
    assert text.index("| first | done |") < text.index("## first") < text.index("| second | done |")
    assert text.endswith("\n## second\n\n| 2 |\n")


def test_the_page_is_there_while_later_stages_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    reads = python("second", f"print('so far', open({os.fspath(page)!r}).read().count('| first | done |'))")
    monkeypatch.setattr(gpu, "stages", lambda: [python("first", "print(1)"), reads])
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", os.fspath(page)])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "so far 1" in page.read_text()


def test_stages_name_what_there_is() -> None:
    modules = [stage.command[2] for stage in stages() if stage.command[1] == "-m"]
    assert {module.partition(".")[2] for module in modules} - {""} <= {
        path.stem for path in Path(gpu.__file__).parent.glob("*.py")
    }
    assert len({stage.name for stage in stages()}) == len(stages())
    assert all(stage.seconds < MOST_SECONDS for stage in stages())
