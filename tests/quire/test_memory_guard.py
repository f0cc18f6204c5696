from __future__ import annotations

import errno
import logging

import pytest

from quire.errors import Unavailable
from quire.memory_guard import MemoryGuard


def test_goes_on_while_no_file_can_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    too_many = OSError(errno.EMFILE, "Too many open files", "/proc/self/cgroup")
    used: list[float | OSError] = [0.97, too_many, too_many, 0.5, too_many]

    def look() -> float:
        if isinstance(found := used.pop(0), OSError):
            raise found
        return found

    guard = MemoryGuard(look)
    for is_short in (True, True, True, False, False):
        guard.look()
        assert guard.is_short == is_short
    warned = "the memory in use is not known at the moment: Too many open files"
    assert caplog.messages.count(warned) == 2  # once each time


def test_refuses_while_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    used = [0.94, 0.95, 1.0, 0.949, 0.1]
    guard = MemoryGuard(iter(used).__next__)
    for refuses in (False, True, True, False, False):
        guard.look()
        assert guard.is_short == refuses
        if refuses:
            with pytest.raises(Unavailable, match="short of memory"):
                guard.admit()
        else:
            guard.admit()
    assert guard.num_refused == 2
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory soon: 95 % of the limit in use; refusing new requests",
        "95 % of the memory limit in use; accepting new requests again",
    ]
