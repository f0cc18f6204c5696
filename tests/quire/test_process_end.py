"""How a process ends: with its status and its output, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, time
from quire.process_end import run_to_end

class Told:
    def __del__(self):
        print("found")

def work():
    told = Told()
    told.itself = told
    print("done")
    atexit.register(print, "last")
    threading.Thread(target=time.sleep, args=(60,), daemon={daemon}).start() if {daemon} is not None else None
    {ending}

run_to_end(work)
"""


@pytest.mark.parametrize("daemon", [None, True])
@pytest.mark.parametrize(
    ("ending", "status"),
    [("pass", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit('said')", 1), ("raise ValueError('said')", 1)],
)
def test_what_a_process_leaves(daemon: bool | None, ending: str, status: int) -> None:
    """No cycle is looked for, and no daemon thread waited for or woken."""
    script = SCRIPT.format(daemon=daemon, ending=ending)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (status, "done\nlast\n")
    assert done.stderr.strip().endswith("said") == ("said" in ending)
