"""Replacements for torch.cuda, of which a torch without CUDA has only the names, and for kernel launches."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.support.emulated_gpu.build import library

_DEVICE = torch.device("cuda", 0)
_TOTAL = 1 << 30  # bytes
# A capability for which Triton has no e4m3, since the interpreter's numpy has none either.
_CAPABILITY = (8, 0)
_device = torch.ops.emulated_gpu


def _wait(moment: int) -> None:
    wrong = _device.past(moment)
    assert not wrong, wrong


class Generator(torch.Generator):
    """A random generator, always on the host, where the operations run."""

    def __new__(cls, device: object = None) -> Generator:
        return super().__new__(cls, "cpu")


class Event:
    """A point in time of the only stream."""

    def __init__(self, **_: bool) -> None:
        self._moment = 0

    def record(self, stream: Stream | None = None) -> None:
        self._moment = _device.moment()

    def synchronize(self) -> None:
        _wait(self._moment)

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, other: Event) -> float:
        return 1.0


class Stream(torch.Stream):
    """A stream; all stream objects stand for the only one."""

    def __new__(cls, device: object = None) -> Stream:
        kind = 1  # CUDA's number in torch
        return super().__new__(cls, stream_id=0, device_index=_DEVICE.index, device_type=kind)

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def synchronize(self) -> None:
        _wait(_device.moment())

    def record_event(self) -> Event:
        event = Event()
        event.record()
        return event


class Graph:
    """What torch.cuda.graph records."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)

    def replay(self) -> None:
        position = 0
        while True:
            kernel, position = _device.replay(self.number, position)
            if kernel < 0:
                return
            _launches[kernel]()

    def __del__(self) -> None:
        _device.drop_graph(self.number)


_launches: dict[int, Callable[[], None]] = {}  # launches that graphs have recorded
_current = threading.local()


@contextmanager
def _graph(graph: Graph, **_: object) -> Iterator[None]:
    _device.begin_graph(graph.number)
    try:
        yield
    finally:
        _device.end_graph()


@contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    before = _current_stream()
    _current.stream = stream or before
    try:
        yield
    finally:
        _current.stream = before


def _current_stream(device: object = None) -> Stream:
    return getattr(_current, "stream", None) or Stream()


def _pin(address: int, num_bytes: int, flags: int) -> int:
    _device.pin(address, num_bytes)
    return 0


def install() -> None:
    """Makes torch use this GPU, in the whole process, permanently."""
    with warnings.catch_warnings(action="ignore"):  # it replaces functions that torch has for the host
        torch.ops.load_library(str(library()))
    stand_ins: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "emulated",
        "get_device_capability": lambda device=None: _CAPABILITY,
        "get_device_properties": lambda device=None: SimpleNamespace(multi_processor_count=2, total_memory=_TOTAL),
        "mem_get_info": lambda device=None: (_TOTAL - _device.held_bytes(), _TOTAL),
        "memory_allocated": lambda device=None: _device.held_bytes(),
        "memory_reserved": lambda device=None: _device.held_bytes(),
        "max_memory_reserved": lambda device=None: _device.peak_bytes(),
        "reset_peak_memory_stats": lambda device=None: _device.reset_peak(),
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: _wait(_device.moment()),
        "set_sync_debug_mode": lambda mode: _device.forbid_waits(mode == "error"),
        "graph_pool_handle": lambda: (0, 0),
        "cudart": lambda: SimpleNamespace(cudaHostRegister=_pin, cudaHostUnregister=_device.unpin),
        "check_error": lambda code: None,
        "Event": Event, "Stream": Stream, "CUDAGraph": Graph, "graph": _graph, "stream": _stream,
        "current_stream": _current_stream,
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
    setattr(torch, "Generator", Generator)  # noqa: B010  (to mypy it is a type)
    _launch_on_host()


def _launch_on_host() -> None:
    """Makes launched kernels get host views of device memory, and has launches recorded like operations."""
    from triton.language import target_info
    from triton.runtime import interpreter

    target_info.current_target = lambda: None  # the original would look for a driver
    execute = interpreter.GridExecutor.__call__

    def launch(grid: Any, *given: Any, **named: Any) -> None:
        values, options = [_on_host(each) for each in given], {name: _on_host(each) for name, each in named.items()}
        with np.errstate(all="ignore"):  # unwritten memory is computed with, but does not enter results that count
            execute(grid, *values, **options)
        if _device.is_recording():
            number = len(_launches)
            # Looked up by name when it runs, because tests may patch it.
            _launches[number] = lambda: interpreter.GridExecutor.__call__(grid, *given, **named)
            _device.record_kernel(number)

    interpreter.GridExecutor.__call__ = launch


def _on_host(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    assert value.is_cuda, "a kernel is given a tensor of the host's"
    return _device.host_alias(value)
