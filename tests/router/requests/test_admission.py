"""Requests that the router does not take."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from quire.errors import Overloaded
from router.placement.policies.base import RouteRequest
from router.requests.admission import Admission
from router.requests.waiting_room import WaitingRoom
from tests.support.manual_clock import ManualClock


def test_who_is_refused_is_told_how_long_others_wait() -> None:
    now = ManualClock()
    room: WaitingRoom[Mock] = WaitingRoom(9, 9, 60.0, Mock(time=now), Mock(), Mock())
    admission = Admission(2)
    admission.check("model", 1, room)
    told = []
    for seconds in (0.0, 30.0):
        now.seconds += seconds
        with pytest.raises(Overloaded, match="--max-inflight-requests") as refusal:
            admission.check("model", 2, room)
        told.append(refusal.value.retry_after_seconds)
        request = RouteRequest("first", "model", prompt_tokens=1, sequences=1, output_tokens=1)
        room.enter(Mock(request=request, begun=False, deadline=None))
    assert told == [1.0, 30.0]
