"""Reads the header of a GGUF file: metadata by name, and the locations of its tensors.

Files come from anywhere and are not trusted: each count and length is checked against the remaining bytes before
anything of that size is allocated.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from quire.errors import StartupError
from quire.gguf.types import TYPES, TensorType

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LEAST_ENTRY = 13  # bytes of a metadata entry with an empty name
_LEAST_TENSOR = 24
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_MOST_ALIGNMENT = 1 << 20

Value: TypeAlias = Any  # a number, a bool, a string, or a list of one of these types


@dataclass(frozen=True)
class StoredTensor:
    """The location and type of a tensor."""

    name: str
    file: Path
    type: TensorType
    shape: tuple[int, ...]  # the last dimension is contiguous
    offset: int  # in bytes from the beginning of the file

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape[:-1]) * self.type.row_bytes(self.shape[-1])


@dataclass(frozen=True)
class Header:
    """Everything but the tensors' values."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]


class _Broken(Exception):
    """The file is malformed."""


def read_header(file: Path) -> Header:
    """Reads the header of a file.

    Raises:
        StartupError: the file cannot be read, is not a GGUF file, or is truncated.
    """
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Reader(file, content).header()
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise StartupError(f"{file} cannot be read: {error}") from error
    except _Broken as error:
        raise StartupError(f"{file} is not a whole GGUF file: {error}. Download it again.") from error


class _Reader:
    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self._file, self._content = file, content
        self._at = 0

    def header(self) -> Header:
        if self._content[:4] != MAGIC:
            raise _Broken(f"it begins with {self._content[:4]!r} instead of {MAGIC!r}")
        self._at = len(MAGIC)
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise _Broken(f"its version is {version}; supported are {' and '.join(map(str, _VERSIONS))}, little-endian")
        num_tensors, num_entries = self._scalar("Q"), self._scalar("Q")
        self._check_count(num_entries, _LEAST_ENTRY, "metadata entries")
        metadata = dict(self._entry() for _ in range(num_entries))
        self._check_count(num_tensors, _LEAST_TENSOR, "tensors")
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= _MOST_ALIGNMENT:
            raise _Broken(f"its general.alignment is {alignment}")
        start = -(-self._at // alignment) * alignment
        tensors = {each[0]: self._placed(start, *each) for each in described}
        if len(tensors) < len(described):
            raise _Broken("two of its tensors have the same name")
        return Header(metadata, tensors)

    def _entry(self) -> tuple[str, Value]:
        name, kind = self._string(), self._scalar("I")
        try:
            return name, self._list() if kind == _ARRAY else self._value(kind)
        except _Broken as error:
            raise _Broken(f"{name}: {error}") from None

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind not in _SCALARS:
            raise _Broken(f"it has the type number {kind}, which is not known")
        return self._scalar(_SCALARS[kind])

    def _list(self) -> list[Value]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            self._check_count(count, 8, "strings")
            return self._strings(count)
        if kind not in _SCALARS:
            raise _Broken(f"it is a list whose items have the type number {kind}, which is not known")
        return list(self._numbers(_SCALARS[kind], count))

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type number, shape, and offset after the header."""
        name, dimensions = self._string(), self._scalar("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise _Broken(f"the tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed(self._numbers("Q", dimensions)))
        return name, self._scalar("I"), shape, self._scalar("Q")

    def _placed(self, start: int, name: str, number: int, shape: tuple[int, ...], offset: int) -> StoredTensor:
        if number not in TYPES:
            raise _Broken(f"the tensor {name} has the type number {number}, which is not known")
        tensor = StoredTensor(name, self._file, TYPES[number], shape, start + offset)
        try:
            end = tensor.offset + tensor.num_bytes
        except ValueError as error:
            raise _Broken(f"the tensor {name} has {error}") from None
        if min(shape) < 1 or end > len(self._content):
            raise _Broken(
                f"the tensor {name} of {tensor.type.name} {list(shape)} would end at byte {end}, but the file has "
                f"{len(self._content)} bytes"
            )
        return tensor

    def _check_count(self, count: int, least: int, what: str) -> None:
        if count * least > (left := len(self._content) - self._at):
            raise _Broken(f"it announces {count} {what}, but only {left} bytes are left")

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """Reads many strings in one loop: a vocabulary has hundreds of thousands."""
        content, at, size = self._content, self._at, len(self._content)
        found = []
        for _ in range(count):
            begin = at + 8
            at = begin + int.from_bytes(content[at:begin], "little")
            if at > size:
                raise _Broken(
                    f"a text of {at - begin} bytes would begin at byte {begin}, but the file has {size} bytes"
                )
            found.append(content[begin:at].decode("utf-8", "replace"))
        self._at = at
        return found

    def _scalar(self, code: str) -> Value:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Value, ...]:
        self._check_count(count, size := struct.calcsize(f"<{code}"), "numbers")
        found = struct.unpack_from(f"<{count}{code}", self._content, self._at)
        self._at += size * count
        return found
