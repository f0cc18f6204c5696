"""A process ends with its status and its output, and does nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, builtins, os, sys, threading, time
from quire.process_end import run_to_end

class Told:
    def __init__(self, text):
        self.text = text
    def __del__(self, write=os.write):
        write(1, self.text)

builtins.goes_with_the_interpreter = Told(b"taken apart\\n")

def work():
    told = Told(b"found\\n")
    told.itself = told
    print("done")
    atexit.register(print, "last")
    if {daemon}:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    {ending}

run_to_end(work)
"""


@pytest.mark.parametrize("daemon", [False, True])
@pytest.mark.parametrize(
    ("ending", "status"),
    [("pass", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit('said')", 1), ("raise ValueError('said')", 1)],
)
def test_what_a_process_leaves(daemon: bool, ending: str, status: int) -> None:
    """At exit no cycles are collected; with a daemon thread left, there is no teardown and no wait for the thread."""
    script = SCRIPT.format(daemon=daemon, ending=ending)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    apart = "" if daemon else "taken apart\n"
    assert (done.returncode, done.stdout) == (status, f"done\nlast\n{apart}")
    assert done.stderr.strip().endswith("said") == ("said" in ending)
