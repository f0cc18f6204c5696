"""What the collector of cycles is spared: what stays, and what a process leaves behind."""

from __future__ import annotations

import gc
import subprocess
import sys

from quire.collection import without_collection

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


def test_what_stays_is_never_looked_at() -> None:
    was_enabled, before = gc.isenabled(), gc.get_freeze_count()
    with without_collection():
        assert not gc.isenabled()
        stays = [[number] for number in range(10_000)]
    assert gc.isenabled() == was_enabled
    assert gc.get_freeze_count() - before >= len(stays)
    assert not any(each is stays[0] for each in gc.get_objects())
