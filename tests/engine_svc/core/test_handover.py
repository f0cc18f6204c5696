"""What steps bring reaches the event loop in order, at once where it is urgent, and else in few calls."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine_svc.core import handover as handover_module
from engine_svc.core.handover import Handover, joined
from engine_svc.kv_cache.events import Changes
from engine_svc.plan import PositionLogprobs
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from tests.support.waiting import eventually

SECONDS = 60.0
FOREVER = 3600.0


class Loop:
    """An event loop's side of a handover."""

    def __init__(self, pause: float) -> None:
        self.calls: list[list[int]] = []  # keys of the deltas of each
        self.handover = Handover(asyncio.get_running_loop(), self._deliver, pause)

    @property
    def keys(self) -> list[int]:
        return [key for call in self.calls for key in call]

    async def put(self, key: int, *, urgent: bool = False) -> None:
        """From another thread."""
        await asyncio.to_thread(self.handover.put, [SequenceDelta(key, 0, [])], None, urgent=urgent)

    def _deliver(self, deltas: list[SequenceDelta], changes: list[Changes]) -> None:
        self.calls.append([delta.key for delta in deltas])


async def test_what_is_not_urgent_waits_for_what_is() -> None:
    loop = Loop(FOREVER)
    await loop.put(1)  # nothing has been delivered, so there is no pause yet
    await eventually(lambda: loop.keys == [1], "the first", SECONDS)
    await loop.put(2)
    await loop.put(3)
    await asyncio.sleep(0.01)
    assert loop.keys == [1]
    await loop.put(4, urgent=True)
    await eventually(lambda: loop.calls == [[1], [2, 3, 4]], "the urgent one, and those before it", SECONDS)


async def test_a_pause_ends_without_the_engines_thread() -> None:
    loop = Loop(0.05)
    for key in range(3):
        await loop.put(key)
    await eventually(lambda: loop.keys == [0, 1, 2], "all", SECONDS)
    assert len(loop.calls) <= 3


async def test_nothing_is_lost_or_reordered_however_they_meet() -> None:
    loop = Loop(0.0005)

    def engine() -> None:
        for key in range(5000):
            loop.handover.put([SequenceDelta(key, 0, [])], None, urgent=key % 7 == 0)

    await asyncio.to_thread(engine)
    await eventually(lambda: len(loop.keys) == 5000, "all", SECONDS)
    assert loop.keys == list(range(5000))


async def test_the_engine_waits_for_an_event_loop_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "_MAX_STEPS", 4)
    loop = Loop(FOREVER)
    put = []

    def engine() -> None:
        for key in range(6):
            loop.handover.put([SequenceDelta(key, 0, [])], None, urgent=key == 0)
            put.append(key)

    thread = threading.Thread(target=engine)
    thread.start()
    while len(put) < 4:  # the event loop stands still meanwhile
        pass
    assert len(put) == 4
    await asyncio.to_thread(thread.join, SECONDS)  # there is room again, though the pause has not ended
    assert put == [0, 1, 2, 3, 4, 5]


async def test_a_closed_handover_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "_MAX_STEPS", 1)
    monkeypatch.setattr(handover_module, "_LOOK_SECONDS", 0.01)
    loop = Loop(FOREVER)
    await loop.put(1)
    await eventually(lambda: loop.keys == [1], "the first", SECONDS)
    await loop.put(2)
    blocked = asyncio.create_task(loop.put(3))
    await asyncio.sleep(0.01)
    loop.handover.close()
    await asyncio.wait_for(blocked, SECONDS)
    assert loop.keys == [1]


def test_tokens_of_a_sequence_become_one_delta_where_its_last_was() -> None:
    end = SequenceDelta(1, 0, [14], finish_reason=FinishReason.STOP, stop_token_id=14, is_final=True)
    steps = [
        [SequenceDelta(1, 0, [10]), SequenceDelta(1, 1, [20]), SequenceDelta(2, 0, [30])],
        [SequenceDelta(1, 0, [11, 12]), SequenceDelta(1, 1, [21], finish_reason=FinishReason.LENGTH)],
        [end, SequenceDelta(2, 0, [31])],
    ]
    assert joined(steps) == [
        SequenceDelta(1, 1, [20, 21], finish_reason=FinishReason.LENGTH),
        SequenceDelta(1, 0, [10, 11, 12, 14], finish_reason=FinishReason.STOP, stop_token_id=14, is_final=True),
        SequenceDelta(2, 0, [30, 31]),
    ]
    assert [delta.token_ids for delta in steps[0]] == [[10], [20], [30]]


@pytest.mark.parametrize(
    "apart",
    [
        SequenceDelta(1, 0, [11], logprobs=[PositionLogprobs([11], [-0.5], 1)]),
        SequenceDelta(1, 0, [11], prompt_logprobs=[]),
        SequenceDelta(1, 0, [], finish_reason=FinishReason.ABORT, is_final=True),
    ],
)
def test_what_has_scores_or_no_tokens_stays_by_itself(apart: SequenceDelta) -> None:
    before = SequenceDelta(1, 0, [10])
    assert joined([[before], [apart]]) == [before, apart]
    after = SequenceDelta(1, 0, [12])
    if apart.token_ids:
        assert joined([[before], [apart], [after]]) == [before, apart, after]
