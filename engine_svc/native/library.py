"""The C++ kernels as Python functions on tensors: shapes and types are the caller's duty, pointers are ours."""

from __future__ import annotations

import ctypes
import functools
import logging

from engine_svc.native.build import NativeUnavailable, library

logger = logging.getLogger(__name__)

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "pack_bf16": (_POINTER, _LONG, _LONG, _POINTER),
    "pack_int8": (_POINTER, _LONG, _LONG, _POINTER),
    "matrix_bf16": (_POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _INT, _INT),
    "matrix_int8": (
        _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER,
        _INT, _INT,
    ),
    "experts_bf16": (
        _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _INT,
    ),
    "experts_int8": (
        _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, *(_POINTER,) * 6, _POINTER, _LONG, _LONG, _INT,
    ),
    "rms_norm": (_POINTER, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _FLOAT, _INT),
    "rotate": (_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _FLOAT, *(_LONG,) * 5, _INT),
    "activate_and_multiply": (_POINTER, _POINTER, _LONG, _LONG, _INT, _INT),
    "write_cache": (
        _POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _INT,
    ),
    "paged_prefill": (
        _POINTER, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER,
        _LONG, _LONG, _LONG, _LONG, _FLOAT, _LONG, _FLOAT, _POINTER, _INT,
    ),
    "paged_decode": (
        _POINTER, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG,
        _LONG, _LONG, _FLOAT, _LONG, _FLOAT, _POINTER, _INT,
    ),
}  # fmt: skip


class Kernels:
    """The library's functions, by their names without `quire_`, with their arguments' types set."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        for name, types in _SIGNATURES.items():
            function = getattr(loaded, f"quire_{name}")
            function.argtypes, function.restype = types, None
            setattr(self, name, function)

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(f"there is no kernel {name}")


@functools.cache
def kernels() -> Kernels | None:
    """The kernels, or None where this machine cannot have them (and the log says why)."""
    try:
        return Kernels(ctypes.CDLL(str(library())))
    except (NativeUnavailable, OSError) as error:
        logger.warning("the native CPU kernels are not used: %s; torch's own are slower at small batches", error)
        return None
