"""Conversion of traces to and from protobuf."""

from __future__ import annotations

from quire.rpc.context import TRACE_HEADERS, Trace, read_trace
from quire.v1 import common_pb2


def to_trace(generation: common_pb2.Generation) -> Trace:
    """The trace that a request belongs to; empty if it has none, or a malformed one."""
    return read_trace({name: getattr(generation, name) for name in TRACE_HEADERS})


def write_trace(trace: Trace, generation: common_pb2.Generation) -> None:
    """Makes a request part of a trace."""
    for name, value in trace:
        setattr(generation, name, value)
