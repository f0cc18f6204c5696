"""Reads a tensor from a file that torch.save wrote, without torch, and without unpickling anything.

Such a file is a zip archive of values and of a program that describes the tensor. The few operations that this takes
are carried out here on plain values, and any other one is refused, so a file can neither call nor make anything.
"""

from __future__ import annotations

import io
import math
import pickletools
import sys
import zipfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenizer_svc.media_rejection import MediaRejection

_MOST_PROGRAM_BYTES = 64 * 1024
_MOST_DIMENSIONS = 8
_REBUILD, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_HOOKS = "collections OrderedDict"  # those of a tensor, of which there are none
_BFLOAT16 = "bfloat16"
# Class of a tensor's values → how they are stored; bfloat16 as its bits.
_STORED: Mapping[str, tuple[str, str]] = MappingProxyType({
    "torch FloatStorage": ("float32", "<f4"), "torch HalfStorage": ("float16", "<f2"),
    "torch BFloat16Storage": (_BFLOAT16, "<u2"), "torch LongStorage": ("int64", "<i8"),
    "torch IntStorage": ("int32", "<i4"),
})  # fmt: skip
_NO_TENSOR = "is not a single tensor"


class _Tensor(NamedTuple):
    """A tensor as a program describes it."""

    class_name: str  # of its storage
    key: str  # of its values in the archive
    offset: int  # of the first value
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensor(file: bytes, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
    """Returns the only tensor of a file: floats as float32, integers as int64.

    Args:
        name: of the tensor, for messages.

    Raises:
        MediaRejection: the file is not one that torch.save wrote of a single dense tensor of such numbers.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            return _read(archive)
    except MediaRejection as error:
        raise MediaRejection(f"{name} {error}. Save a tensor: torch.save(tensor.contiguous().cpu(), file).") from None
    except Exception:  # whatever zipfile, pickletools and numpy raise about malformed files
        raise MediaRejection(
            f"{name} is not a tensor as torch.save writes it. Send base64 of the file that torch.save(tensor, file) "
            "writes."
        ) from None


def _read(archive: zipfile.ZipFile) -> npt.NDArray[Any]:
    described = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    tensor = _described(_stored(archive, described, _MOST_PROGRAM_BYTES))
    if tensor.class_name not in _STORED:
        raise MediaRejection(f"has values of {tensor.class_name[:50]}; supported are {', '.join(_STORED)}")
    _check_dense(tensor)
    dtype, form = _STORED[tensor.class_name]
    values = np.frombuffer(_stored(archive, f"{described.removesuffix('data.pkl')}data/{tensor.key}"), form)
    found = values[tensor.offset : tensor.offset + math.prod(tensor.shape)].reshape(tensor.shape)
    if dtype == _BFLOAT16:
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found.astype(np.float32 if found.dtype.kind == "f" else np.int64)


def _stored(archive: zipfile.ZipFile, name: str, most_bytes: int = sys.maxsize) -> bytes:
    """A file of the archive.

    Raises:
        ValueError: it is larger than that, or compressed, which torch does not do.
    """
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > most_bytes:
        raise ValueError(name)
    return archive.read(info)


def _check_dense(tensor: _Tensor) -> None:
    """
    Raises:
        MediaRejection: it has no values, or they do not follow each other row by row.
    """
    if min(tensor.shape) < 1:
        raise MediaRejection(f"has the shape {[*tensor.shape]}, which has an empty dimension")
    dense = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    if any(size > 1 and own != wanted for size, own, wanted in zip(tensor.shape, tensor.strides, dense, strict=True)):
        raise MediaRejection("has values that do not follow each other row by row")


def _described(program: bytes) -> _Tensor:
    """The tensor that a program describes.

    Raises:
        MediaRejection: it describes something else.
        ValueError, and others: it is malformed.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(program):
        match name := opcode.name:
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE" | "GLOBAL":
                stack.append(argument)
            case "NEWFALSE" | "NEWTRUE" | "EMPTY_TUPLE":
                stack.append(())  # flags of gradients, and hooks: not needed
            case "MARK":
                marks.append(len(stack))
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                start = marks.pop() if name == "TUPLE" else len(stack) - int(name[-1])
                stack[start:] = [tuple(stack[start:])]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "REDUCE":
                arguments = stack.pop()
                stack[-1] = _made(stack[-1], arguments)
            case "PROTO" | "BINPERSID" | "STOP":  # the tuple that names a storage stands for it
                pass
            case _:
                raise MediaRejection(_NO_TENSOR)
    (found,) = stack
    if not isinstance(found, _Tensor):
        raise MediaRejection(_NO_TENSOR)
    return found


def _made(function: Any, arguments: Any) -> Any:
    """What a call stands for.

    Raises:
        MediaRejection: it does not make a tensor.
        ValueError, and others: its arguments are malformed.
    """
    if function == _HOOKS and arguments == ():
        return ()
    if function == _PARAMETER and isinstance(arguments[0], _Tensor):
        return arguments[0]
    if function != _REBUILD:
        raise MediaRejection(_NO_TENSOR)
    (kind, class_name, key, *_), offset, shape, strides, *_ = arguments
    if (kind, type(class_name), type(key)) != ("storage", str, str) or not (_are_sizes((offset,)) and offset >= 0):
        raise ValueError(function)
    if not (_are_sizes(shape) and _are_sizes(strides)) or not 1 <= len(shape) == len(strides) <= _MOST_DIMENSIONS:
        raise ValueError(function)
    return _Tensor(class_name, key, offset, shape, strides)


def _are_sizes(given: Any) -> bool:
    return isinstance(given, tuple) and all(type(size) is int for size in given)
