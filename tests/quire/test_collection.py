"""What a process leaves behind is not looked through for cycles."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from quire.collection import end_without_collection

class Told:
    def __del__(self):
        print("found")

told = Told()
told.itself = told
del told
if {without}:
    end_without_collection()
"""


def test_at_the_end() -> None:
    said = [
        subprocess.run([sys.executable, "-c", SCRIPT.format(without=without)], capture_output=True, check=True).stdout
        for without in (False, True)
    ]
    assert said == [b"found\n", b""]
