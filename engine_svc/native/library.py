"""The C++ kernels as Python functions. Callers are responsible for matching shapes and dtypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from engine_svc.native.build import NativeUnavailable, library
from engine_svc.native.calls import Calls, NotRecordable
from engine_svc.native.levels import LEVELS, available_levels
from quire.errors import StartupError
from quire.processor_name import processor_name

logger = logging.getLogger(__name__)

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
# Numbered as in types.h.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
INT8 = 3  # as in packing.cpp
KINDS = {"plain": 0, "int8": 1, "coded": 2, "compressed": 3}  # as in product.h
CODES = {"nibbles": 0, "int8": 1, "e4m3": 2, "e5m2": 3, "e4m3 by tables": 4}  # as in coded.h
CACHED = {torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}  # as in eight_bits.h; 0 means a cache in the model's dtype
# As in routing.cpp.
SCORINGS = {"softmax": 0, "sigmoid": 1, "sparsemixer": 2, "sqrtsoftplus": 3, "sigmoid, biased logits": 4}
GATES = {"silu": 0, "gelu_tanh": 1, "clamped": 2, "gelu": 3, "relu": 4, "relu2": 5, "clipped": 6}  # as in activation.h
_SIGNATURES = {
    "panel": (),
    "packed_values": (_INT, _LONG, _LONG),
    "pack": (_INT, _POINTER, _LONG, _LONG, _POINTER),
    "quantize_rows": (_INT, _POINTER, _LONG, _LONG, _POINTER, _POINTER),
    "quantize_groups": (_INT, _POINTER, _LONG, _LONG, _LONG, _POINTER, _POINTER),
    "pack_int8": (_POINTER, _LONG, _LONG, _POINTER, _POINTER),
    "compressed_bytes": (_LONG, _LONG),
    "compress": (_POINTER, _LONG, _LONG, _POINTER),
    "packed_coded_bytes": (_POINTER, _LONG, _LONG),
    "pack_coded": (_INT, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER),
    "matrix": (_INT, _POINTER, _LONG, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _INT),
    "experts": (
        _INT, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG,
        _POINTER,
    ),
    "shrink": (
        _INT, _INT, _POINTER, _LONG, _POINTER, _POINTER, *(_LONG,) * 3, _POINTER, _POINTER, _LONG, _LONG, _POINTER,
    ),
    "expand": (_INT, _INT, *(_POINTER,) * 4, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _LONG),
    "set_threads": (_INT,),
    "head_matrices": (_INT, _POINTER, _LONG, _LONG, _POINTER, _POINTER, *(_LONG,) * 6),
    "take_rows": (_INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _LONG, _FLOAT, _POINTER),
    "packed_rows": (_INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _FLOAT, _POINTER),
    "mean_rows": (_INT, _POINTER, _LONG, _POINTER, _LONG, _POINTER),
    "rms_norm": (_INT, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _FLOAT),
    "layer_norm": (_INT, _POINTER, _LONG, *(_POINTER,) * 4, _LONG, _LONG, _LONG, _FLOAT),
    "add": (_INT, _POINTER, _POINTER, _POINTER, _LONG, _LONG),
    "gate": (_INT, _POINTER, _POINTER, _LONG, _LONG),
    "clip": (_INT, _POINTER, _LONG, _LONG, _FLOAT),
    "softcap": (_POINTER, _LONG, _LONG, _LONG, _FLOAT),
    "scale": (_INT, _POINTER, _LONG, _LONG, _LONG, _FLOAT),
    "scale_rows": (_INT, _POINTER, _LONG, _POINTER, _LONG, _LONG),
    "copy_parts": (_POINTER, _LONG, _LONG, _POINTER, *(_LONG,) * 4),
    "clear": (_POINTER, _LONG, _LONG),
    "rotate_pairs": (_INT, _POINTER, _LONG, _LONG, _POINTER, _POINTER, *(_LONG,) * 5),
    "choose_experts": (*(_POINTER,) * 3, *(_LONG,) * 5, _INT, _FLOAT, _INT, _FLOAT, _POINTER, _POINTER),
    "rotate": (_INT, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _FLOAT, *(_LONG,) * 5, _INT),
    "activate_and_multiply": (_INT, _POINTER, _POINTER, _LONG, _LONG, _INT, _FLOAT, _FLOAT),
    "activate": (_INT, _POINTER, _LONG, _LONG, _INT),
    "xielu": (_INT, _POINTER, _LONG, _LONG, _POINTER), "stream_weights": (_POINTER, *(_LONG,) * 3, _FLOAT),
    "sample": (_POINTER, _LONG, _LONG, _LONG, *(_POINTER,) * 5),
    "sample_part": (_POINTER, *(_LONG,) * 4, *(_POINTER,) * 6),
    "candidates": (_POINTER, *(_LONG,) * 4, *(_POINTER,) * 3, _LONG, *(_POINTER,) * 3),
    "sample_candidates": (*(_POINTER,) * 3, *(_LONG,) * 3, *(_POINTER,) * 6),
    "score": (_POINTER, _LONG, _LONG, _LONG, _INT, *(_POINTER,) * 3, _LONG, _POINTER, _POINTER),
    "write_cache": (_INT, _INT, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, *(_LONG,) * 6),
    "attend": (
        _INT, _INT, _POINTER, _LONG, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER, _LONG,
        _POINTER, *(_LONG,) * 4, _FLOAT, _LONG, _INT, _INT, _FLOAT, _POINTER, _POINTER, _LONG, _LONG, _POINTER,
    ),
    "convolve": (_INT, _INT, *(_POINTER,) * 5, _LONG, _LONG, _POINTER, _INT),
    "gated_convolve": (_INT, _INT, *(_POINTER,) * 5, _LONG, _LONG, _POINTER),
    "gated_units": (_INT, _INT, *(_POINTER,) * 8, _LONG, _POINTER),
    "scan_channels": (_INT, _INT, *(_POINTER,) * 9, _LONG, _LONG, _POINTER),
    "scan_heads": (_INT, _INT, *(_POINTER,) * 7, _FLOAT, _FLOAT, *(_POINTER,) * 2, *(_LONG,) * 4, _POINTER),
    "delta_rule": (_INT, _INT, *(_POINTER,) * 7, _INT, _FLOAT, *(_POINTER,) * 2, *(_LONG,) * 4, _POINTER),
    "gated_norm": (_INT, *(_POINTER,) * 3, _FLOAT, _INT, _INT, *(_LONG,) * 3, _POINTER),
    "all_reduce": (_POINTER, _INT, _POINTER, _LONG),
    "all_gather": (_POINTER, _POINTER, _LONG, _LONG, _POINTER),
    "replay": (_POINTER, _LONG),
}  # fmt: skip
# Kernels that return a number.
_COUNTS = (
    "panel", "packed_values", "compressed_bytes", "compress", "packed_coded_bytes",
    "all_reduce", "all_gather", "replay",
)  # fmt: skip


class PackedForm(ctypes.Structure):
    """A packed weight; see product.h and coded.h."""

    _fields_ = (
        ("kind", _INT), ("weight", _POINTER), ("scale", _POINTER), ("correction", _POINTER), ("codes", _INT),
        ("span", _INT), ("scale_type", _INT), ("offset_type", _INT), ("grid", _POINTER), ("input_order", _POINTER),
        ("compressed_bytes", _LONG),
    )  # fmt: skip


class LowRank(ctypes.Structure):
    """See experts.cpp."""

    _fields_ = (
        ("down", _POINTER), ("up", _POINTER), ("ranks", _POINTER), ("starts", _POINTER), ("parts", _LONG),
        ("rank", _LONG),
    )  # fmt: skip


class Adapters(ctypes.Structure):
    """See experts.cpp."""

    _fields_ = (("slots", _POINTER), ("type", _INT), ("gate_up", LowRank), ("down", LowRank))


class ExpertsForm(ctypes.Structure):
    """See experts.cpp."""

    _fields_ = (
        ("gate", _INT), ("slope", _FLOAT), ("limit", _FLOAT), ("weighs_inputs", _INT), ("is_gated", _INT),
        ("gate_up_bias", _POINTER), ("down_bias", _POINTER), ("adapters", Adapters),
    )  # fmt: skip


class Kernels:
    """The functions of one level's library, named without the prefix `quire_`, with their argument types set."""

    def __init__(self, level: str) -> None:
        """
        Raises:
            NativeUnavailable: the kernels cannot be built here, or this process may not run them.
            OSError: the library cannot be loaded.
        """
        if level not in available_levels():  # also requests instructions that need the system's permission
            raise NativeUnavailable(f"this processor has no {level}")
        self.level = level
        self._recorded = threading.Lock()  # only one thread can record at a time
        self._callers: dict[str, int] = {}  # addresses of the callers of recordable kernels
        loaded = ctypes.CDLL(str(library(level)))
        for name, types in _SIGNATURES.items():
            function = getattr(loaded, f"quire_{name}")
            function.argtypes, function.restype = types, _LONG if name in _COUNTS else None
            setattr(self, name, function)
            with contextlib.suppress(AttributeError):  # this kernel cannot be recorded
                self._callers[name] = _address(getattr(loaded, f"quire_call_{name}"))
        self.set_threads(torch.get_num_threads())

    @contextlib.contextmanager
    def recording(self) -> Iterator[Calls]:
        """A context in which this thread's kernel calls are recorded instead of made; other threads are not affected.

        A call that cannot be recorded raises NotRecordable.
        """
        calls = Calls()
        with self._recorded:
            functions = {name: getattr(self, name) for name in _SIGNATURES}
            for name, function in functions.items():
                setattr(self, name, self._noted(name, function, calls))
            try:
                yield calls
            finally:
                vars(self).update(functions)

    def _noted(self, name: str, function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
        recorder, caller, types = threading.get_ident(), self._callers.get(name), _SIGNATURES[name]

        def call(*arguments: Any) -> Any:
            if threading.get_ident() != recorder:
                return function(*arguments)
            if caller is None:
                raise NotRecordable(f"the kernel {name}")
            calls.add(caller, types, arguments)
            return 1  # as if the call succeeded

        return call

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(f"there is no kernel {name}")


def _address(function: ctypes._NamedFuncPointer) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def kernels(level: str) -> Kernels:
    """The kernels of a level, loaded once.

    Raises:
        NativeUnavailable: the kernels cannot be built here.
        OSError: the library cannot be loaded.
    """
    return Kernels(level)


def choose_kernels(choice: str, device: torch.device) -> Kernels | None:
    """The kernels for a rank. None means torch's operators are used instead.

    Args:
        choice: the value of --cpu-kernels: auto (the fastest level of the processor), torch, or a level.

    Raises:
        StartupError: the requested level cannot run here.
    """
    if device.type != "cpu" and choice in LEVELS:
        raise StartupError(f"--cpu-kernels {choice} is for CPUs, but the device is {device.type}; leave it out.")
    if device.type != "cpu" or choice == "torch":
        return None
    found = available_levels()
    if choice != "auto" and choice not in found:
        raise StartupError(
            f"--cpu-kernels {choice} is not supported by this processor. Levels that it supports: "
            f"{', '.join(found) or 'none'}."
        )
    if not found:
        logger.warning(
            "there are no native CPU kernels for this processor (%s on %s): they need Linux, and x86-64 with AVX2 or "
            "64-bit ARM; torch's own are slower", platform.machine(), platform.system(),
        )  # fmt: skip
        return None
    try:
        loaded = kernels(found[-1] if choice == "auto" else choice)
        loaded.set_threads(torch.get_num_threads())  # for this rank; another one may have loaded the library
        logger.info("CPU kernels: %s, on %s", loaded.level, processor_name())
        return loaded
    except (NativeUnavailable, OSError) as error:
        if choice != "auto":
            raise StartupError(f"--cpu-kernels {choice}: {error}") from error
        logger.warning("the native CPU kernels are not used: %s; torch's own are slower", error)
        return None
