"""The table of counters matches the protobuf message."""

from __future__ import annotations

from quire.counters import COUNTS, HISTOGRAMS
from quire.v1 import common_pb2


def test_the_wire_has_the_same_counters() -> None:
    fields = common_pb2.EngineCounters.DESCRIPTOR.fields
    assert {field.name for field in fields if field.message_type is None} == set(COUNTS)
    assert {field.name for field in fields if field.message_type is not None} == set(HISTOGRAMS)
