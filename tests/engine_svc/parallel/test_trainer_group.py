"""The id of an NCCL communicator, as vLLM's trainers write it into the store."""

from __future__ import annotations

import ctypes
import pickle
from pathlib import Path
from typing import Any

import pytest

from engine_svc.parallel.trainer_group import read_communicator_id


class ncclUniqueId(ctypes.Structure):  # noqa: N801  (its name in vLLM)
    _fields_ = (("internal", ctypes.c_byte * 128),)


class Touch:
    """A pickle of this creates a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


def test_the_id_is_read_without_its_class() -> None:
    content = bytes(range(128))
    assert read_communicator_id(pickle.dumps(ncclUniqueId.from_buffer_copy(content))) == content


def test_nothing_else_is_read_or_run(tmp_path: Path) -> None:
    for other in (Touch(tmp_path / "made"), ctypes.c_int(3), 5):
        with pytest.raises(RuntimeError, match="writes no id"):
            read_communicator_id(pickle.dumps(other))
    with pytest.raises(RuntimeError, match="cannot be read"):
        read_communicator_id(b"X")
    assert not (tmp_path / "made").exists()
