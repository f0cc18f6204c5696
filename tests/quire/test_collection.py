"""Long-lived objects are exempt from cyclic garbage collection."""

from __future__ import annotations

import gc

from quire.collection import without_collection


def test_what_stays_is_never_looked_at() -> None:
    was_enabled, before = gc.isenabled(), gc.get_freeze_count()
    with without_collection():
        assert not gc.isenabled()
        stays = [[number] for number in range(10_000)]
    assert gc.isenabled() == was_enabled
    assert gc.get_freeze_count() - before >= len(stays)
    assert not any(each is stays[0] for each in gc.get_objects())
