"""The header of a safetensors file, which lists its tensors and their places. Nothing in it is trusted."""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from quire.errors import InvalidRequest

MAX_HEADER_BYTES = 32 * 2**20
MAX_TENSORS = 200_000
_LENGTH_BYTES = 8
# The dtypes that an adapter's weights may have, and the bytes per value.
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class TensorPlace:
    """A tensor in a file."""

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    start: int  # byte offset in the file

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def broken(message: str) -> InvalidRequest:
    """The error for an adapter folder that cannot be served."""
    return InvalidRequest(message, parameter="path")


def regular_size(file: Path) -> int:
    """Size of a file in bytes.

    Raises:
        InvalidRequest: it does not exist or is not a regular file.
    """
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        raise broken(f"{file} cannot be read: {error}.") from error
    if not stat.S_ISREG(status.st_mode):
        raise broken(f"{file} is not a regular file.")
    return status.st_size


def read_header(file: Path) -> dict[str, TensorPlace]:
    """Reads the places of all tensors of a safetensors file, by name, and checks that they are within it.

    Raises:
        InvalidRequest: the file cannot be read or is damaged; names the tensor.
    """
    size = regular_size(file)
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            if not 0 < length <= min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
                raise broken(
                    f"{file} is not a safetensors file, or is truncated: it says that its header has {length} bytes."
                )
            text = opened.read(length)
    except OSError as error:
        raise broken(f"{file} cannot be read: {error}.") from error
    entries = _decode(file, text)
    begin = _LENGTH_BYTES + length
    places = {name: _place(file, name, entry, begin, size) for name, entry in entries.items()}
    end = max((place.start + place.num_bytes for place in places.values()), default=begin)
    if end != size:  # so that reading the whole file reads no more than its tensors
        raise broken(f"{file} has {size - end} extra bytes after its tensors: it is damaged. Copy it again.")
    return places


def _decode(file: Path, text: bytes) -> Mapping[str, _Entry]:
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        found.pop("__metadata__", None)
        entries = msgspec.convert(found, dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise broken(f"{file} has a damaged header: {error}.") from error
    if len(entries) > MAX_TENSORS:
        raise broken(f"{file} has {len(entries)} tensors; at most {MAX_TENSORS} are allowed.")
    return entries


def _place(file: Path, name: str, entry: _Entry, begin: int, size: int) -> TensorPlace:
    shown = f"{file}: {name[:200]}"
    if entry.dtype not in ITEM_BYTES:
        raise broken(f"{shown} is of type {entry.dtype[:20]}; an adapter's weights must be {', '.join(ITEM_BYTES)}.")
    if not entry.shape or min(entry.shape) < 1 or len(entry.shape) > 2:
        raise broken(f"{shown} has the shape {entry.shape[:8]}; an adapter's weights must be vectors and matrices.")
    start, end = entry.data_offsets
    place = TensorPlace(name, entry.dtype, tuple(entry.shape), begin + start)
    if start < 0 or end - start != place.num_bytes or begin + end > size:
        raise broken(
            f"{shown} of shape {entry.shape} is at bytes {start} to {end} after the header, but the file has "
            f"{size - begin} there: it is damaged or truncated. Copy it again."
        )
    return place
